//! Credentials: the user and the password of a login. They are those of the URL, or a provider returns them for each
//! login.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::RedisError;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, timeout};

use crate::threads::{Mutex, lock};

/// What the builder has received about logins, beside the URL. Certificates are the contents of PEM files.
#[derive(Clone, Default)]
pub(crate) struct LoginSettings {
    /// The root certificates to trust instead of those of the system.
    pub(crate) root_certificates: Option<Vec<u8>>,
    /// The certificate chain of this client, and its private key.
    pub(crate) client_certificate: Option<(Vec<u8>, Vec<u8>)>,
    /// The name of all servers in their certificates, in place of their hosts.
    pub(crate) server_name: Option<String>,
    pub(crate) provider: Option<Provider>,
}

/// The user and the password of a login, from a [`CredentialsProvider`].
#[derive(Clone)]
pub struct Credentials {
    pub(super) user: Option<Box<str>>,
    pub(super) password: Box<str>,
    /// For how long the server accepts them.
    pub(super) lifetime: Option<Duration>,
}

/// An error of a [`CredentialsProvider`].
pub type CredentialsError = Box<dyn Error + Send + Sync>;

impl Credentials {
    /// Returns a password of the user in the URL, or of the default user if the URL has none.
    pub fn password(password: impl Into<String>) -> Self {
        Self { user: None, password: password.into().into(), lifetime: None }
    }

    /// Sets the user, in place of the one in the URL.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into().into());
        self
    }

    /// Sets for how long the server accepts these credentials; until the connection ends unless set. For three quarters
    /// of that time, the limiter uses them for each login. Then it asks for new ones, and authenticates its open
    /// connections again.
    #[must_use]
    pub fn valid_for(mut self, lifetime: Duration) -> Self {
        self.lifetime = Some(lifetime);
        self
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Credentials");
        shown.field("user", &self.user).field("lifetime", &self.lifetime).finish_non_exhaustive()
    }
}

/// Returns the credentials of each login: see [`Builder::credentials`](crate::Builder::credentials).
///
/// A function that returns a future is a provider as well. It has 900 ms to answer; calls wait for it up to their
/// deadline.
pub trait CredentialsProvider: Send + Sync + 'static {
    /// Returns the credentials of a login.
    ///
    /// # Errors
    ///
    /// The attempt to connect fails with the text of the error, so that must not contain the password.
    fn credentials(&self) -> impl Future<Output = Result<Credentials, CredentialsError>> + Send;
}

impl<F, C> CredentialsProvider for F
where
    F: Fn() -> C + Send + Sync + 'static,
    C: Future<Output = Result<Credentials, CredentialsError>> + Send,
{
    fn credentials(&self) -> impl Future<Output = Result<Credentials, CredentialsError>> + Send {
        self()
    }
}

/// A provider that reads the password from a file at each login, as Kubernetes mounts a secret. Spaces and line breaks
/// at the end are not part of the password.
///
/// ```
/// use ratelimit_runtime::{PasswordFile, RateLimiter};
///
/// let limiter = RateLimiter::builder()
///     .redis("redis://limits@127.0.0.1:6379")
///     .credentials(PasswordFile::new("/run/secrets/redis-password"))
///     .build()?;
/// # Ok::<(), ratelimit_runtime::BuildError>(())
/// ```
#[derive(Clone, Debug)]
pub struct PasswordFile(PathBuf);

impl PasswordFile {
    /// Returns a provider of the password in the file at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }
}

impl CredentialsProvider for PasswordFile {
    async fn credentials(&self) -> Result<Credentials, CredentialsError> {
        let path = self.0.clone();
        let password = spawn_blocking(move || match std::fs::read_to_string(&path) {
            Ok(text) if text.trim_end().is_empty() => {
                Err(format!("there is no password in {}", path.display()))
            }
            Ok(text) => Ok(text.trim_end().to_owned()),
            Err(error) => Err(format!("cannot read {}: {error}", path.display())),
        });
        Ok(Credentials::password(password.await??))
    }
}

type ProviderFuture = Pin<Box<dyn Future<Output = Result<Credentials, CredentialsError>> + Send>>;

/// How long a provider may take, a little less than an attempt to connect: the attempt then fails because of it, not of
/// Redis.
const PROVIDED_WITHIN: Duration = Duration::from_millis(900);

/// A provider of any type.
#[derive(Clone)]
pub(crate) struct Provider {
    ask: Arc<dyn Fn() -> ProviderFuture + Send + Sync>,
    /// The credentials that it has returned, if they have a lifetime, and when.
    last: Arc<Mutex<Option<(Credentials, Instant)>>>,
}

impl Provider {
    pub(crate) fn new(provider: impl CredentialsProvider) -> Self {
        let provider = Arc::new(provider);
        let ask = move || -> ProviderFuture {
            let provider = Arc::clone(&provider);
            Box::pin(async move { provider.credentials().await })
        };
        Self { ask: Arc::new(ask), last: Arc::default() }
    }

    /// Returns the credentials of a login: the last ones, unless three quarters of their lifetime have passed, or the
    /// server `has_refused` them.
    pub(super) async fn credentials(&self, has_refused: bool) -> Result<Credentials, RedisError> {
        let known = lock(&self.last).clone().filter(|_| !has_refused);
        if let Some((credentials, since)) = known
            && let Some(rest) = credentials.lifetime.and_then(|it| it.checked_sub(since.elapsed()))
            && rest > credentials.lifetime.unwrap_or_default() / 4
        {
            return Ok(credentials.valid_for(rest));
        }
        // The provider is foreign code, so it runs in a task of its own: its panic is an error of the login, and it
        // ends with a login that is given up.
        let (mut task, asked) = (JoinSet::new(), Instant::now());
        task.spawn((self.ask)());
        let cause = match timeout(PROVIDED_WITHIN, task.join_next()).await {
            Ok(Some(Ok(Ok(credentials)))) => {
                *lock(&self.last) = credentials.lifetime.map(|_| (credentials.clone(), asked));
                return Ok(credentials);
            }
            Ok(Some(Ok(Err(error)))) => error.to_string(),
            Ok(Some(Err(ended))) => ended.to_string(),
            Ok(None) | Err(_) => format!("no answer within {PROVIDED_WITHIN:?}"),
        };
        Err(io::Error::other(format!("the provider of credentials failed: {cause}")).into())
    }
}
