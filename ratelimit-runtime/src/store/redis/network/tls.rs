//! TLS by rustls, with the certificates that [`Builder`](crate::Builder) received.

use std::io;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::client::ClientConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::credentials::LoginSettings;
use crate::reply::BuildError;

/// Encrypts connections to the servers of a limiter.
#[derive(Clone)]
pub(crate) struct Tls {
    connector: TlsConnector,
    server_name: Option<ServerName<'static>>,
}

impl Tls {
    pub(crate) fn new(settings: &LoginSettings) -> Result<Self, BuildError> {
        let mut roots = RootCertStore::empty();
        match &settings.root_certificates {
            Some(pem) => {
                for root in chain(pem)? {
                    roots.add(root).map_err(invalid)?;
                }
            }
            None => drop(roots.add_parsable_certificates(system_roots()?)),
        }
        let config = ClientConfig::builder_with_provider(provider()?)
            .with_safe_default_protocol_versions()
            .map_err(invalid)?
            .with_root_certificates(roots);
        let config = match &settings.client_certificate {
            Some((certificate, key)) => {
                let key = PrivateKeyDer::from_pem_slice(key).map_err(invalid)?;
                config.with_client_auth_cert(chain(certificate)?, key).map_err(invalid)?
            }
            None => config.with_no_client_auth(),
        };
        let server_name = settings.server_name.clone().map(ServerName::try_from).transpose();
        let server_name = server_name.map_err(|_| BuildError::InvalidServerName)?;
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), server_name })
    }

    pub(crate) async fn encrypt(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = match &self.server_name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned()).map_err(io::Error::other)?,
        };
        self.connector.connect(name, stream).await.map_err(|error| {
            if error.to_string().contains("UnknownIssuer") {
                let advice = "set `root_certificates` to those that have signed the server's";
                return io::Error::new(error.kind(), format!("{error}: {advice}"));
            }
            error
        })
    }
}

/// Returns the cryptography that the application has installed, else that of a feature. Installs none: a process has
/// one, and the application chooses it.
fn provider() -> Result<Arc<CryptoProvider>, BuildError> {
    if let Some(installed) = CryptoProvider::get_default() {
        return Ok(Arc::clone(installed));
    }
    #[cfg(feature = "tls-aws-lc")]
    let provider = Ok(Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    #[cfg(all(feature = "tls-ring", not(feature = "tls-aws-lc")))]
    let provider = Ok(Arc::new(rustls::crypto::ring::default_provider()));
    #[cfg(not(any(feature = "tls-ring", feature = "tls-aws-lc")))]
    let provider = Err(BuildError::NoCryptography);
    provider
}

/// Returns the certificates of a PEM file, at least one.
fn chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, BuildError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let chain = chain.map_err(invalid)?;
    if chain.is_empty() { Err(invalid("no certificate in the PEM file")) } else { Ok(chain) }
}

fn system_roots() -> Result<Vec<CertificateDer<'static>>, BuildError> {
    let loaded = rustls_native_certs::load_native_certs();
    match loaded.errors.into_iter().next() {
        Some(error) if loaded.certs.is_empty() => Err(invalid(error)),
        _ => Ok(loaded.certs),
    }
}

#[allow(clippy::needless_pass_by_value, reason = "`map_err` passes errors by value")]
fn invalid(error: impl ToString) -> BuildError {
    BuildError::InvalidCertificate { message: error.to_string().into() }
}

#[cfg(test)]
mod tests {
    use rustls::crypto::CryptoProvider;

    use super::{LoginSettings, Tls};

    #[test]
    fn installs_no_provider_for_the_process() {
        let built = Tls::new(&LoginSettings::default());
        assert!(CryptoProvider::get_default().is_none(), "the application could install none");
        let is_chosen = cfg!(any(feature = "tls-ring", feature = "tls-aws-lc"));
        assert_eq!(built.err().is_none(), is_chosen);
    }
}
