//! The certificates that a builder receives.

/// Certificates for TLS, as PEM.
#[derive(Clone, Default)]
pub(crate) struct Certificates {
    /// The roots to trust instead of those of the system.
    #[cfg(feature = "tls")]
    pub(crate) root: Option<Vec<u8>>,
    /// The certificate of this client, and its private key.
    #[cfg(feature = "tls")]
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
}
