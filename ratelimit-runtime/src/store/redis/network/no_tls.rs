//! In place of `tls.rs` without feature `tls`: no connection is encrypted.

use std::io;

use tokio::net::TcpStream;

use super::credentials::LoginSettings;
use crate::reply::BuildError;

#[derive(Clone)]
pub(crate) enum Tls {}

impl Tls {
    pub(crate) fn new(_: &LoginSettings) -> Result<Self, BuildError> {
        Err(BuildError::TlsDisabled)
    }

    #[allow(clippy::unused_async, reason = "the signature of `tls.rs`")]
    pub(crate) async fn encrypt(&self, _: &str, _: TcpStream) -> io::Result<TcpStream> {
        match *self {}
    }
}
