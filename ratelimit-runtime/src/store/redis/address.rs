//! Where Redis is, as a URL says it: one server, a cluster, or a primary that Sentinels know.

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};

use super::certificates::Certificates;
#[cfg(feature = "tls")]
use super::tls::Tls;
use crate::reply::BuildError;

/// What a URL leads to.
#[derive(Clone)]
pub(super) enum Address {
    Server(Target),
    Sentinel {
        sentinels: Vec<Target>,
        service: Box<str>,
        /// How the primary is logged in to; its address is what the Sentinels say.
        primary: Target,
    },
    Cluster {
        seeds: Vec<Target>,
    },
}

/// One server: address, user, database, certificates.
#[derive(Clone)]
pub(super) struct Target {
    info: ConnectionInfo,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

const SENTINEL_PORT: u16 = 26379;
const PORT: u16 = 6379;

impl Address {
    /// Reads `redis://…`, `rediss://…`, `unix://…`, and the two with several hosts,
    /// `redis+sentinel://…/service` and `redis+cluster://…`, with `rediss` for TLS.
    pub(super) fn parse(url: &str, certificates: &Certificates) -> Result<Self, BuildError> {
        let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
        let (scheme, topology) = scheme.split_once('+').unwrap_or((scheme, ""));
        if scheme == "rediss" && !cfg!(feature = "tls") {
            return Err(BuildError::TlsDisabled);
        }
        match (scheme, topology) {
            (_, "sentinel") => Self::sentinel(scheme, &Hosts::parse(url)?, certificates),
            (_, "cluster") => {
                let hosts = Hosts::parse(url)?;
                let seeds = hosts.targets(scheme, "", PORT, certificates)?;
                Ok(Self::Cluster { seeds })
            }
            _ => Ok(Self::Server(Target::open(url, certificates)?)),
        }
    }

    fn sentinel(
        scheme: &str,
        hosts: &Hosts<'_>,
        certificates: &Certificates,
    ) -> Result<Self, BuildError> {
        let (service, database) = hosts.path.split_once('/').unwrap_or((hosts.path, ""));
        if service.is_empty() {
            return Err(invalid("it names no service: `redis+sentinel://host,host/service`"));
        }
        // The user in front of the hosts is that of the primary; Sentinels have their own.
        let primary = hosts.targets(scheme, database, PORT, certificates)?;
        let value = |name: &str| {
            let pairs = hosts.query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next().unwrap_or("")
        };
        let user = match (value("sentinel_user"), value("sentinel_password")) {
            ("", "") => String::new(),
            (user, password) => format!("{user}:{password}@"),
        };
        let hosts = Hosts { user: &user, ..*hosts };
        Ok(Self::Sentinel {
            sentinels: hosts.targets(scheme, "", SENTINEL_PORT, certificates)?,
            service: service.into(),
            primary: primary.into_iter().next().ok_or_else(|| invalid("it names no host"))?,
        })
    }
}

/// The parts of a URL of several hosts.
#[derive(Clone, Copy)]
struct Hosts<'a> {
    /// With the `@`, if there is one.
    user: &'a str,
    list: &'a str,
    path: &'a str,
    query: &'a str,
}

impl<'a> Hosts<'a> {
    fn parse(url: &'a str) -> Result<Self, BuildError> {
        let (_, rest) = url.split_once("://").ok_or_else(|| invalid("it has no `://`"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        if hosts.is_empty() {
            return Err(invalid("it names no host"));
        }
        Ok(Self { user, list: hosts, path: path.trim_end_matches('/'), query })
    }

    fn targets(
        &self,
        scheme: &str,
        database: &str,
        port: u16,
        certificates: &Certificates,
    ) -> Result<Vec<Target>, BuildError> {
        let target = |host: &str| {
            // An IPv6 address is in brackets, and may have colons there.
            let has_port = host.rsplit(']').next().is_some_and(|end| end.contains(':'));
            let port = if has_port { String::new() } else { format!(":{port}") };
            Target::open(&format!("{scheme}://{}{host}{port}/{database}", self.user), certificates)
        };
        self.list.split(',').map(target).collect()
    }
}

impl Target {
    fn open(url: &str, certificates: &Certificates) -> Result<Self, BuildError> {
        let info = url.into_connection_info().map_err(|error| {
            // The URL itself is not repeated: it may hold a password.
            invalid(error.to_string().trim_end_matches(" - InvalidClientConfig"))
        })?;
        Self::new(info, certificates)
    }

    #[cfg(feature = "tls")]
    fn new(info: ConnectionInfo, certificates: &Certificates) -> Result<Self, BuildError> {
        let tls = match info.addr() {
            ConnectionAddr::TcpTls { insecure: true, .. } => {
                return Err(invalid("`#insecure` would trust any server; see `root_certificates`"));
            }
            ConnectionAddr::TcpTls { .. } => Some(Tls::new(certificates)?),
            _ => None,
        };
        Ok(Self { info, tls })
    }

    #[cfg(not(feature = "tls"))]
    fn new(info: ConnectionInfo, _: &Certificates) -> Result<Self, BuildError> {
        match info.addr() {
            ConnectionAddr::TcpTls { .. } => Err(BuildError::TlsDisabled),
            _ => Ok(Self { info }),
        }
    }

    pub(super) fn address(&self) -> &ConnectionAddr {
        self.info.addr()
    }

    /// User, password and database.
    pub(super) fn login(&self) -> &RedisConnectionInfo {
        self.info.redis_settings()
    }

    #[cfg(feature = "tls")]
    pub(super) async fn encrypt(
        &self,
        host: &str,
        stream: tokio::net::TcpStream,
    ) -> std::io::Result<impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static>
    {
        match &self.tls {
            Some(tls) => tls.encrypt(host, stream).await,
            None => Err(std::io::ErrorKind::Unsupported.into()),
        }
    }

    /// The same login at another address.
    pub(super) fn at(&self, host: &str, port: u16) -> Self {
        let host = host.to_owned();
        let addr = match self.info.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        let mut target = self.clone();
        target.info = target.info.set_addr(addr);
        target
    }

    pub(super) fn host(&self) -> &str {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host,
            _ => "",
        }
    }

    pub(super) fn port(&self) -> u16 {
        match self.info.addr() {
            ConnectionAddr::Tcp(_, port) | ConnectionAddr::TcpTls { port, .. } => *port,
            _ => PORT,
        }
    }

    /// Where it is, for people.
    pub(super) fn name(&self) -> Box<str> {
        self.info.addr().to_string().into()
    }
}

fn invalid(message: &str) -> BuildError {
    BuildError::InvalidUrl { message: message.into() }
}
