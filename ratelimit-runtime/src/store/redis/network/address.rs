//! Parses a Redis URL: the address of one server, of a cluster, or of the Sentinels of a primary.

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};

use super::certificates::Certificates;
#[cfg(feature = "tls")]
use super::tls::Tls;
use crate::reply::BuildError;

/// The servers that a URL names.
#[derive(Clone)]
pub(crate) enum Address {
    Server(Target),
    Sentinel {
        sentinels: Vec<Target>,
        service: Box<str>,
        /// The user, the password, the database and the certificates of the primary. The Sentinels report its
        /// address.
        primary: Target,
    },
    Cluster {
        seeds: Vec<Target>,
    },
}

/// One server: its address, user, password, database and certificates.
#[derive(Clone)]
pub(crate) struct Target {
    info: ConnectionInfo,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

const DEFAULT_SENTINEL_PORT: u16 = 26379;
const DEFAULT_PORT: u16 = 6379;

impl Address {
    /// Parses `redis://…`, `rediss://…` and `unix://…`, and the URLs of several hosts:
    /// `redis+sentinel://…/service` and `redis+cluster://…`, with `rediss` for TLS.
    pub(crate) fn parse(url: &str, certificates: &Certificates) -> Result<Self, BuildError> {
        let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
        let (scheme, topology) = scheme.split_once('+').unwrap_or((scheme, ""));
        if scheme == "rediss" && !cfg!(feature = "tls") {
            return Err(BuildError::TlsDisabled);
        }
        check_rest(url, scheme, topology)?;
        match (scheme, topology) {
            (_, "sentinel") => Self::sentinel(scheme, &MultiHostUrl::parse(url)?, certificates),
            (_, "cluster") => {
                let url = MultiHostUrl::parse(url)?;
                let seeds = url.targets(scheme, "", DEFAULT_PORT, certificates)?;
                Ok(Self::Cluster { seeds })
            }
            _ => Ok(Self::Server(Target::open(url, certificates)?)),
        }
    }

    fn sentinel(
        scheme: &str,
        url: &MultiHostUrl<'_>,
        certificates: &Certificates,
    ) -> Result<Self, BuildError> {
        let (service, database) = url.path.split_once('/').unwrap_or((url.path, ""));
        if service.is_empty() {
            return Err(invalid("no service after the hosts"));
        }
        // The user before the hosts is the user of the primary. The user of the Sentinels is in the query.
        let primary = url.targets(scheme, database, DEFAULT_PORT, certificates)?;
        let value = |name: &str| {
            let pairs = url.query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next().unwrap_or("")
        };
        let user = match (value("sentinel_user"), value("sentinel_password")) {
            ("", "") => String::new(),
            (user, password) => format!("{user}:{password}@"),
        };
        let sentinels = MultiHostUrl { user: &user, ..*url };
        Ok(Self::Sentinel {
            sentinels: sentinels.targets(scheme, "", DEFAULT_SENTINEL_PORT, certificates)?,
            service: service.into(),
            primary: primary.into_iter().next().ok_or_else(|| invalid("no host"))?,
        })
    }
}

/// Rejects a fragment and unknown parameters: otherwise, a `#` in a password would cut off the host, and a `?db=3`
/// would be ignored.
fn check_rest(url: &str, scheme: &str, topology: &str) -> Result<(), BuildError> {
    let (url, fragment) = url.split_once('#').unwrap_or((url, "insecure"));
    if fragment != "insecure" {
        return Err(invalid("a `#` in it ends the URL: in a user or a password, write `%23`"));
    }
    let names: &[&str] = match (scheme, topology) {
        (_, "sentinel") => &["sentinel_user", "sentinel_password"],
        (_, "cluster") => &[],
        ("unix" | "redis+unix", _) => &["db", "user", "pass", "protocol"],
        _ => &["protocol"],
    };
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let mut pairs = query.split('&').filter(|pair| !pair.is_empty());
    let unknown = pairs.find(|pair| !names.contains(&pair.split('=').next().unwrap_or_default()));
    if unknown.is_none() {
        return Ok(());
    }
    Err(invalid(if names.contains(&"db") {
        "after `?`, it can have `db`, `user`, `pass` and `protocol`"
    } else {
        "after `?`, it has a name that is not known: a database is a path, such as `redis://host:6379/3`; \
         in a password, write `%3F` for `?`"
    }))
}

/// The parts of a URL with several hosts.
#[derive(Clone, Copy)]
struct MultiHostUrl<'a> {
    /// The user and the password, up to and including the `@`; empty if there is none.
    user: &'a str,
    /// Separated by commas.
    hosts: &'a str,
    path: &'a str,
    query: &'a str,
}

impl<'a> MultiHostUrl<'a> {
    fn parse(url: &'a str) -> Result<Self, BuildError> {
        let (_, rest) = url.split_once("://").ok_or_else(|| invalid("no `://`"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        if hosts.is_empty() {
            return Err(invalid("no host"));
        }
        Ok(Self { user, hosts, path: path.trim_end_matches('/'), query })
    }

    fn targets(
        &self,
        scheme: &str,
        database: &str,
        port: u16,
        certificates: &Certificates,
    ) -> Result<Vec<Target>, BuildError> {
        let target = |host: &str| {
            // An IPv6 address is in brackets, and can contain colons there.
            let has_port = host.rsplit(']').next().is_some_and(|end| end.contains(':'));
            let port = if has_port { String::new() } else { format!(":{port}") };
            Target::open(&format!("{scheme}://{}{host}{port}/{database}", self.user), certificates)
        };
        self.hosts.split(',').map(target).collect()
    }
}

impl Target {
    fn open(url: &str, certificates: &Certificates) -> Result<Self, BuildError> {
        let info = url.into_connection_info().map_err(|error| {
            // The message does not contain the URL, which can contain a password.
            invalid(error.to_string().trim_end_matches(" - InvalidClientConfig"))
        })?;
        Self::new(info, certificates)
    }

    #[cfg(feature = "tls")]
    fn new(info: ConnectionInfo, certificates: &Certificates) -> Result<Self, BuildError> {
        let tls = match info.addr() {
            ConnectionAddr::TcpTls { insecure: true, .. } => {
                return Err(invalid(
                    "`#insecure` trusts any server: pass the root certificates to `root_certificates`",
                ));
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

    pub(crate) fn address(&self) -> &ConnectionAddr {
        self.info.addr()
    }

    /// Returns the user, the password and the database.
    pub(crate) fn login(&self) -> &RedisConnectionInfo {
        self.info.redis_settings()
    }

    #[cfg(feature = "tls")]
    pub(crate) async fn encrypt(
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

    /// Returns the same user, database and certificates at another address.
    pub(crate) fn with_address(&self, host: &str, port: u16) -> Self {
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

    pub(crate) fn host(&self) -> &str {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host,
            _ => "",
        }
    }

    pub(crate) fn port(&self) -> u16 {
        match self.info.addr() {
            ConnectionAddr::Tcp(_, port) | ConnectionAddr::TcpTls { port, .. } => *port,
            _ => DEFAULT_PORT,
        }
    }

    /// Returns the address, for logs.
    pub(crate) fn name(&self) -> Box<str> {
        self.info.addr().to_string().into()
    }
}

fn invalid(message: &str) -> BuildError {
    BuildError::InvalidUrl { message: message.into() }
}
