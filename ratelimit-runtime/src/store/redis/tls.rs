//! Encryption by rustls, with the certificates of the [`Builder`](crate::Builder).

use std::io;
use std::sync::Arc;

use rustls::client::{ClientConfig, WantsClientCert};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ConfigBuilder, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::certificates::Certificates;
use crate::reply::BuildError;

/// How connections are encrypted.
#[derive(Clone)]
pub(super) struct Tls(TlsConnector);

impl Tls {
    pub(super) fn new(certificates: &Certificates) -> Result<Self, BuildError> {
        // rustls panics where no provider is installed and it cannot tell which is meant.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // The application may be first, which is as well.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let mut roots = RootCertStore::empty();
        match &certificates.root {
            Some(pem) => {
                for root in chain(pem)? {
                    roots.add(root).map_err(invalid)?;
                }
            }
            None => drop(roots.add_parsable_certificates(system_roots()?)),
        }
        let config = ClientConfig::builder().with_root_certificates(roots);
        let config = match &certificates.client {
            Some((chain, key)) => with_client(config, chain, key)?,
            None => config.with_no_client_auth(),
        };
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    pub(super) async fn encrypt(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        self.0.connect(name, stream).await
    }
}

fn with_client(
    config: ConfigBuilder<ClientConfig, WantsClientCert>,
    certificate: &[u8],
    key: &[u8],
) -> Result<ClientConfig, BuildError> {
    let key = PrivateKeyDer::from_pem_slice(key).map_err(invalid)?;
    config.with_client_auth_cert(chain(certificate)?, key).map_err(invalid)
}

/// The certificates of a PEM file; at least one.
fn chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, BuildError> {
    let chain: Vec<_> =
        CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(invalid)?;
    if chain.is_empty() { Err(invalid("there is no certificate in it")) } else { Ok(chain) }
}

fn system_roots() -> Result<Vec<CertificateDer<'static>>, BuildError> {
    let found = rustls_native_certs::load_native_certs();
    match found.errors.into_iter().next() {
        Some(error) if found.certs.is_empty() => Err(invalid(error)),
        _ => Ok(found.certs),
    }
}

#[allow(clippy::needless_pass_by_value, reason = "`map_err` passes errors by value")]
fn invalid(error: impl ToString) -> BuildError {
    BuildError::InvalidCertificate { message: error.to_string().into() }
}
