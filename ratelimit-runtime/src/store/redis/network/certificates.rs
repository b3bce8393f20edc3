//! The certificates that [`Builder`](crate::Builder) receives, for `tls.rs`.

/// The certificates for TLS, as the contents of PEM files.
#[derive(Clone, Default)]
pub(crate) struct Certificates {
    /// The root certificates to trust instead of those of the system.
    #[cfg(feature = "tls")]
    pub(crate) root: Option<Vec<u8>>,
    /// The certificate chain of this client, and its private key.
    #[cfg(feature = "tls")]
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
}
