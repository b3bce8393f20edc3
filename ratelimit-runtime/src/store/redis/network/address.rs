//! Parses a Redis URL: the address of one server, of a cluster, or of the Sentinels of a primary.

use std::collections::HashMap;

use redis::IntoConnectionInfo;

use super::Tls;
use super::connection::{DEFAULT_PORT, Target};
use super::credentials::{LoginSettings, Provider};
use super::node::ServerLookup;
use super::sentinel::Sentinels;
use crate::reply::BuildError;

/// The servers that a URL names.
#[allow(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub(crate) enum Address {
    Server(ServerLookup),
    /// Some nodes of a cluster.
    Cluster(Vec<Target>),
}

const DEFAULT_SENTINEL_PORT: u16 = 26379;

impl Address {
    /// Parses `redis://…`, `unix://…`, and the URLs of several hosts: `redis+sentinel://…/service` and
    /// `redis+cluster://…`. `rediss` means TLS, `valkey` and `valkeys` mean the same as `redis` and `rediss`, and `-`
    /// means `+`. Each part of the URL is used, or the URL is an error.
    pub(crate) fn parse(url: &str, login: &LoginSettings) -> Result<Self, BuildError> {
        let url = url.trim();
        if url.contains(char::is_control) {
            return Err(invalid("a line break or a tab is in it: percent-encode it, as in `%0A`"));
        }
        if let Some((_, fragment)) = url.split_once('#') {
            return Err(invalid(match fragment {
                "insecure" => {
                    "`#insecure` trusts any server: pass the root certificates to `root_certificates`"
                }
                _ => "a `#` in it ends the URL: in a user or a password, write `%23`",
            }));
        }
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid("no `://`"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let path = path.trim_end_matches('/');
        let scheme = scheme.to_ascii_lowercase().replace("valkey", "redis").replace('-', "+");
        let (topology, names): (_, &[&str]) = match &*scheme {
            "unix" | "redis+unix" => ("unix", &["db", "user", "pass", "protocol"]),
            "redis" | "rediss" => ("", &["protocol"]),
            "redis+cluster" | "rediss+cluster" => ("cluster", &[]),
            "redis+sentinel" | "rediss+sentinel" => {
                ("sentinel", &["sentinel_user", "sentinel_password"])
            }
            _ => return Err(invalid("its scheme is not known")),
        };
        let tls = if scheme.starts_with("rediss") { Some(Tls::new(login)?) } else { None };
        let provider = login.provider.as_ref();
        let parameters = parameters(query, names)?;
        if topology == "unix" {
            if !authority.is_empty() {
                return Err(invalid("a socket has no host: write `unix:///path?user=…&pass=…`"));
            }
            // In a query, the client library reads `+` as a space.
            let url = format!("unix:///{path}?{}", query.replace('+', "%2B"));
            return Ok(Self::Server(ServerLookup::At(target(&url, None, provider)?)));
        }
        let (user, hosts) = authority.split_at(authority.find('@').map_or(0, |at| at + 1));
        if hosts.contains('@') {
            return Err(invalid(
                "a user and a password stand before all hosts, and write `%40` for their `@`",
            ));
        }
        let targets = |user: &str, default_port: u16, database: &str, provider| {
            let of_host = |host: &str| {
                if host.is_empty() {
                    return Err(invalid("no host"));
                }
                // An IPv6 address is in brackets, and can contain colons there.
                let end = host.rsplit(']').next().and_then(|end| end.split_once(':'));
                let port = match end {
                    Some((_, port)) if !port.is_empty() => String::new(),
                    _ => format!(":{default_port}"),
                };
                let url = format!("redis://{user}{host}{port}/{database}?{query}");
                target(&url, tls.clone(), provider)
            };
            hosts.split(',').map(of_host).collect::<Result<Vec<_>, _>>()
        };
        match topology {
            "cluster" => Ok(Self::Cluster(targets(user, DEFAULT_PORT, path, provider)?)),
            "sentinel" => {
                let (service, database) = path.split_once('/').unwrap_or((path, ""));
                let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
                if service.is_empty() || !service.bytes().all(is_valid) {
                    return Err(invalid(
                        "the path begins with the service, of letters, digits and `.-_`; in a password, write `%2F` \
                         for `/`",
                    ));
                }
                // The user before the hosts is the user of the primary. The user of the Sentinels is in the query.
                let parameter = |name| parameters.get(name).copied().unwrap_or("");
                let login = match (parameter("sentinel_user"), parameter("sentinel_password")) {
                    ("", "") => String::new(),
                    (user, password) => format!("{user}:{password}@"),
                };
                let sentinels = targets(&login, DEFAULT_SENTINEL_PORT, "", None)?;
                let primary = targets(user, DEFAULT_PORT, database, provider)?.swap_remove(0);
                let sentinels = Sentinels::new(sentinels, service.into(), primary);
                Ok(Self::Server(ServerLookup::Primary(sentinels)))
            }
            _ if hosts.contains(',') => Err(invalid(
                "several hosts: begin the URL of a cluster with `redis+cluster://`, of Sentinels with \
                 `redis+sentinel://`",
            )),
            _ => {
                let target = targets(user, DEFAULT_PORT, path, provider)?.swap_remove(0);
                Ok(Self::Server(ServerLookup::At(target)))
            }
        }
    }
}

/// Returns what follows the `?` of a URL. Rejects other names: a `?db=3` would be ignored.
fn parameters<'a>(query: &'a str, names: &[&str]) -> Result<HashMap<&'a str, &'a str>, BuildError> {
    let mut parameters = HashMap::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some((name, value))
                if names.contains(&name) && parameters.insert(name, value).is_none() => {}
            _ => {
                return Err(invalid(
                    "after `?`, it has a name that is not known, or one twice: a database is a path, as in \
                     `redis://host/3`, and for a socket `?db=3&user=…&pass=…`; the user of Sentinels is \
                     `?sentinel_user=…&sentinel_password=…`; in a password, write `%3F` for `?`",
                ));
            }
        }
    }
    Ok(parameters)
}

/// Parses the URL of one server. `provider` takes the place of its password.
fn target(url: &str, tls: Option<Tls>, provider: Option<&Provider>) -> Result<Target, BuildError> {
    let info = url.into_connection_info().map_err(|error| {
        // The message does not contain the URL, which can contain a password.
        invalid(error.to_string().trim_end_matches(" - InvalidClientConfig"))
    })?;
    let login = info.redis_settings().clone();
    if login.db() < 0 {
        return Err(invalid("the number of its database is negative"));
    }
    match (login.username(), login.password(), provider) {
        (Some(_), None, None) => Err(invalid("a user without a password: write `user:password@`")),
        (_, Some(_), Some(_)) => Err(invalid(
            "it has a password, and `credentials` provides another: remove one of them",
        )),
        _ => Ok(Target { address: info.addr().clone(), login, tls, provider: provider.cloned() }),
    }
}

fn invalid(message: &str) -> BuildError {
    BuildError::InvalidUrl { message: message.into() }
}
