//! Connections by the redis crate, to each Redis that the library can use: a server, a cluster, or the primary that
//! Sentinels report.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, bail, ensure};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, IntoConnectionInfo, Pipeline, RedisFuture,
    RedisResult, TlsCertificates, Value,
};

use crate::{Context, TIMEOUT};

/// One connection for all clients, as the library has: commands are written without waiting for earlier replies.
#[derive(Clone)]
pub(crate) enum Connection {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// A primary, and its address.
pub(crate) struct Node {
    pub(crate) address: String,
    pub(crate) connection: MultiplexedConnection,
}

/// The Redis of a [`Context`], for the redis crate.
pub(crate) struct Redis<'a> {
    parts: Parts<'a>,
    certificates: TlsCertificates,
    /// In place of the password of the URL.
    password: Option<String>,
}

impl<'a> Redis<'a> {
    pub(crate) fn new(context: &'a Context) -> anyhow::Result<Self> {
        // The errors of the library say what to write.
        context.builder()?.build()?;
        let settings = &context.settings;
        let read = |path: &Option<PathBuf>| path.as_ref().map(fs::read).transpose();
        let certificate = read(&settings.client_certificate)?.zip(read(&settings.client_key)?);
        let client_tls = certificate
            .map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        let certificates =
            TlsCertificates { client_tls, root_cert: read(&settings.root_certificates)? };
        let password = settings.password_file.as_ref().map(|path| {
            let text = fs::read_to_string(path);
            text.with_context(|| format!("cannot read {}", path.display()))
        });
        let password = password.transpose()?.map(|text| text.trim_end().to_owned());
        let parts = Parts::new(&context.url);
        ensure!(
            parts.topology != "cluster" || matches!(parts.path.trim_matches('/'), "" | "0"),
            "a cluster has one database, except of Valkey 9, and this command reads only that: remove the path of the \
             URL"
        );
        Ok(Self { parts, certificates, password })
    }

    pub(crate) fn parts(&self) -> &Parts<'a> {
        &self.parts
    }

    /// Connects. Returns the address of the server or of the cluster, without the password of the URL.
    pub(crate) async fn connect(&self) -> anyhow::Result<(Connection, String)> {
        if self.parts.topology == "cluster" {
            return self.connect_to_cluster().await;
        }
        let Node { address, mut connection } = self.connect_to_server().await?;
        let info = redis::cmd("INFO").arg("cluster").query_async(&mut connection).await;
        let info: String = info.with_context(|| format!("{address} does not reply to INFO"))?;
        let is_cluster = info.contains("cluster_enabled:1");
        ensure!(
            !is_cluster,
            "{address} is a node of a cluster: begin the URL with redis+cluster://"
        );
        Ok((Connection::Server(connection), address))
    }

    /// Connects to the server, or to each primary of the cluster.
    pub(crate) async fn nodes(&self) -> anyhow::Result<Vec<Node>> {
        if self.parts.topology != "cluster" {
            return Ok(vec![self.connect_to_server().await?]);
        }
        let mut reply = Ok(Vec::new());
        for url in self.parts.urls(self.parts.login, 6379) {
            reply = slots(&self.client(&url)?).await;
            if reply.is_ok() {
                break;
            }
        }
        let slots = reply.with_context(|| format!("no node replies at {}", self.parts.hosts))?;
        let mut addresses: Vec<_> =
            slots.iter().filter_map(|slots| self.primary_of(slots)).collect();
        addresses.sort_unstable();
        addresses.dedup();
        ensure!(!addresses.is_empty(), "the cluster has no slots: run `redis-cli --cluster fix`");
        let mut nodes = Vec::new();
        for address in addresses {
            let Parts { scheme, login, .. } = self.parts;
            nodes.push(self.connect_to(&format!("{scheme}://{login}{address}")).await?);
        }
        Ok(nodes)
    }

    /// Returns the address of a primary, in an element of the reply to `CLUSTER SLOTS`.
    fn primary_of(&self, slots: &[Value]) -> Option<String> {
        let primary: Vec<Value> = redis::from_redis_value(slots.get(2)?.clone()).ok()?;
        let [host, port, ..] = &primary[..] else { return None };
        let port: u16 = redis::from_redis_value(port.clone()).ok()?;
        let host: Option<String> = redis::from_redis_value(host.clone()).ok()?;
        // A node that does not know its host is the one that has replied.
        let unknown = || Some(self.parts.hosts.split(',').next()?.rsplit_once(':')?.0.to_owned());
        let host = host.filter(|host| !["", "?"].contains(&&**host)).or_else(unknown)?;
        let is_bare = host.contains(':') && !host.starts_with('[');
        Some(if is_bare { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
    }

    /// Connects to the server, or to the primary that the Sentinels report.
    async fn connect_to_server(&self) -> anyhow::Result<Node> {
        match self.parts.topology {
            "sentinel" => self.connect_to(&self.primary().await?).await,
            _ => self.connect_to(self.parts.url).await,
        }
    }

    async fn connect_to(&self, url: &str) -> anyhow::Result<Node> {
        let client = self.client(url)?;
        let address = client.get_connection_info().addr().to_string();
        let connection = connect(&client).await;
        let connection = connection.with_context(|| format!("cannot connect to {address}"))?;
        Ok(Node { address, connection })
    }

    async fn connect_to_cluster(&self) -> anyhow::Result<(Connection, String)> {
        let urls = self.parts.urls(self.parts.login, 6379);
        let mut builder =
            ClusterClient::builder(urls).connection_timeout(TIMEOUT).response_timeout(TIMEOUT);
        if self.parts.is_encrypted() {
            builder = builder.certs(self.certificates.clone());
        }
        if let Some(password) = &self.password {
            builder = builder.password(password);
        }
        let address = format!("the cluster at {}", self.parts.hosts);
        let connection = builder.build()?.get_async_connection().await;
        let connection = connection.with_context(|| format!("cannot connect to {address}"))?;
        Ok((Connection::Cluster(connection), address))
    }

    /// Returns the URL of the primary, as the first Sentinel that replies reports it.
    async fn primary(&self) -> anyhow::Result<String> {
        let parts = &self.parts;
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
            reply = primary_from(&self.open(&*url)?, service).await;
            if let Ok(Some((host, port))) = &reply {
                let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
                return Ok(format!("{}://{}{host}:{port}/{database}", parts.scheme, parts.login));
            }
        }
        reply.with_context(|| format!("no Sentinel replies at {}", parts.hosts))?;
        bail!("the Sentinels at {} do not know the service `{service}`", parts.hosts)
    }

    /// Returns a client that logs in as the library does.
    fn client(&self, url: &str) -> RedisResult<Client> {
        let mut info = url.into_connection_info()?;
        if let Some(password) = &self.password {
            let settings = info.redis_settings().clone().set_password(password);
            info = info.set_redis_settings(settings);
        }
        self.open(info)
    }

    fn open(&self, info: impl IntoConnectionInfo) -> RedisResult<Client> {
        if self.parts.is_encrypted() {
            return Client::build_with_tls(info, self.certificates.clone());
        }
        Client::open(info)
    }
}

async fn slots(client: &Client) -> RedisResult<Vec<Vec<Value>>> {
    redis::cmd("CLUSTER").arg("SLOTS").query_async(&mut connect(client).await?).await
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

/// The parts of `url`: `scheme+topology://login@hosts/path?query`. The login includes its `@`.
pub(crate) struct Parts<'a> {
    url: &'a str,
    scheme: &'a str,
    pub(crate) topology: &'a str,
    login: &'a str,
    pub(crate) hosts: &'a str,
    path: &'a str,
    query: &'a str,
}

impl<'a> Parts<'a> {
    fn new(url: &'a str) -> Self {
        let url = url.trim();
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let (scheme, topology) = scheme.split_once(['+', '-']).unwrap_or((scheme, ""));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        Self { url, scheme, topology, login, hosts, path, query }
    }

    /// Returns the user of the login.
    pub(crate) fn user(&self) -> &str {
        let user = self.login.split([':', '@']).next().unwrap_or_default();
        if user.is_empty() { "default" } else { user }
    }

    pub(crate) fn is_encrypted(&self) -> bool {
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
