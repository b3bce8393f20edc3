//! The connection of the limiters that are written by hand, to each Redis that the library can use: a server, a
//! cluster, or the primary that Sentinels report.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use ratelimit_runtime::{Builder, OnError, RateLimiter};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, Pipeline, RedisFuture, RedisResult, TlsCertificates, Value,
};

/// How long a call may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// One connection for all clients, as the library has: commands are written without waiting for earlier replies.
#[derive(Clone)]
pub(crate) enum Connection {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// A URL of the library, and the certificates for TLS.
pub(crate) struct Redis {
    pub(crate) url: String,
    pub(crate) certificates: TlsCertificates,
}

impl Redis {
    /// Returns a builder of the library. A call that Redis does not decide is an error, and neither admitted nor
    /// rejected.
    pub(crate) fn builder(&self) -> Builder {
        let mut builder =
            RateLimiter::builder().redis(&*self.url).deadline(TIMEOUT).on_error(OnError::Deny);
        let TlsCertificates { root_cert, client_tls } = self.certificates.clone();
        if let Some(root) = root_cert {
            builder = builder.root_certificates(root);
        }
        if let Some(client) = client_tls {
            builder = builder.client_certificate(client.client_cert, client.client_key);
        }
        builder
    }

    /// Connects by the redis crate. Returns the address of the server or of the cluster, without the password of the
    /// URL.
    pub(crate) async fn connect(&self) -> anyhow::Result<(Connection, String)> {
        // The error of the library says what to write.
        self.builder().build()?;
        let parts = Parts::new(&self.url);
        match parts.topology {
            "cluster" => self.connect_to_cluster(&parts).await,
            "sentinel" => self.connect_to_server(&self.primary(&parts).await?).await,
            _ => self.connect_to_server(&self.url).await,
        }
    }

    async fn connect_to_server(&self, url: &str) -> anyhow::Result<(Connection, String)> {
        let client = self.client(url)?;
        let address = client.get_connection_info().addr().to_string();
        let connection = connect(&client).await;
        let mut connection = connection.with_context(|| format!("cannot connect to {address}"))?;
        let info = redis::cmd("INFO").arg("cluster").query_async(&mut connection).await;
        let info: String = info.with_context(|| format!("{address} does not reply to INFO"))?;
        let is_cluster = info.contains("cluster_enabled:1");
        ensure!(
            !is_cluster,
            "{address} is a node of a cluster: begin the URL with redis+cluster://"
        );
        Ok((Connection::Server(connection), address))
    }

    async fn connect_to_cluster(&self, parts: &Parts<'_>) -> anyhow::Result<(Connection, String)> {
        ensure!(
            matches!(parts.path.trim_matches('/'), "" | "0"),
            "this program reads the database 0 of a cluster: remove the path of the URL"
        );
        let urls = parts.urls(parts.login, 6379);
        let mut builder =
            ClusterClient::builder(urls).connection_timeout(TIMEOUT).response_timeout(TIMEOUT);
        if parts.is_encrypted() {
            builder = builder.certs(self.certificates.clone());
        }
        let address = format!("the cluster at {}", parts.hosts);
        let connection = builder.build()?.get_async_connection().await;
        let connection = connection.with_context(|| format!("cannot connect to {address}"))?;
        Ok((Connection::Cluster(connection), address))
    }

    /// Returns the URL of the primary, as the first Sentinel that replies reports it.
    async fn primary(&self, parts: &Parts<'_>) -> anyhow::Result<String> {
        let (service, database) = parts.path.split_once('/').unwrap_or((parts.path, ""));
        let value = |name| {
            let mut pairs = parts.query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.find_map(|(key, value)| (key == name).then_some(value)).unwrap_or("")
        };
        let login = match (value("sentinel_user"), value("sentinel_password")) {
            ("", "") => String::new(),
            (user, password) => format!("{user}:{password}@"),
        };
        let mut reply = Ok(None);
        for url in parts.urls(&login, 26379) {
            reply = primary_from(&self.client(&url)?, service).await;
            if let Ok(Some((host, port))) = &reply {
                let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
                return Ok(format!("{}://{}{host}:{port}/{database}", parts.scheme, parts.login));
            }
        }
        reply.with_context(|| format!("no Sentinel replies at {}", parts.hosts))?;
        bail!("the Sentinels at {} do not know the service `{service}`", parts.hosts)
    }

    fn client(&self, url: &str) -> RedisResult<Client> {
        if Parts::new(url).is_encrypted() {
            return Client::build_with_tls(url, self.certificates.clone());
        }
        Client::open(url)
    }
}

async fn connect(client: &Client) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(TIMEOUT))
        .set_response_timeout(Some(TIMEOUT));
    client.get_multiplexed_async_connection_with_config(&config).await
}

async fn primary_from(sentinel: &Client, service: &str) -> RedisResult<Option<(String, u16)>> {
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(service);
    command.query_async(&mut connect(sentinel).await?).await
}

/// The parts of `scheme+topology://login@hosts/path?query`. The login includes its `@`.
struct Parts<'a> {
    scheme: &'a str,
    topology: &'a str,
    login: &'a str,
    hosts: &'a str,
    path: &'a str,
    query: &'a str,
}

impl<'a> Parts<'a> {
    fn new(url: &'a str) -> Self {
        let (scheme, rest) = url.trim().split_once("://").unwrap_or_default();
        let (scheme, topology) = scheme.split_once(['+', '-']).unwrap_or((scheme, ""));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        Self { scheme, topology, login, hosts, path, query }
    }

    fn is_encrypted(&self) -> bool {
        matches!(self.scheme, "rediss" | "valkeys")
    }

    /// Returns the URL of each host.
    fn urls(&self, login: &str, default_port: u16) -> Vec<String> {
        let url = |host: &str| {
            // An address of IPv6 is in brackets, and has colons there.
            let has_port = host.rsplit(']').next().is_some_and(|end| end.contains(':'));
            let port = if has_port { String::new() } else { format!(":{default_port}") };
            format!("{}://{login}{host}{port}", self.scheme)
        };
        self.hosts.split(',').map(url).collect()
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Server(connection) => connection.req_packed_command(command),
            Self::Cluster(connection) => connection.req_packed_command(command),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        commands: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Server(connection) => connection.req_packed_commands(commands, offset, count),
            Self::Cluster(connection) => connection.req_packed_commands(commands, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Server(connection) => connection.get_db(),
            Self::Cluster(connection) => connection.get_db(),
        }
    }
}
