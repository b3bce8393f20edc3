//! The limiter that annotated functions use: the scoped one of a task, else the one of the process.

use std::fmt;
use std::sync::Once;

use once_cell::sync::OnceCell;

use crate::decision::Source;
use crate::error::BuildError;
use crate::ever::Ever;
use crate::limiter::RateLimiter;

/// The variable that names the Redis of the process-wide limiter.
const URL_VARIABLE: &str = "RATELIMIT_REDIS_URL";

static GLOBAL: OnceCell<RateLimiter> = OnceCell::new();

tokio::task_local! {
    static SCOPED: RateLimiter;
}

/// That a task had a limiter of its own.
static SCOPES: Ever = Ever::new();

/// Sets the limiter that annotated functions of this process use.
///
/// That is the choice of an application, made once, at its start; a library takes what is set. If
/// no limiter is set before the first call, one is built from the environment: on the Redis at
/// `RATELIMIT_REDIS_URL`, or embedded when that is unset.
///
/// ```
/// use ratelimit_runtime::{RateLimiter, set_global};
///
/// set_global(RateLimiter::builder().max_keys(10_000).build()?)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`SetGlobalError`] gives the limiter back when there already is one.
pub fn set_global(limiter: RateLimiter) -> Result<(), SetGlobalError> {
    GLOBAL.set(limiter).map_err(SetGlobalError)
}

/// The limiter that an annotated function called here would use.
///
/// # Errors
///
/// [`BuildError`] when `RATELIMIT_REDIS_URL` cannot be used. The next call tries again.
pub fn current() -> Result<RateLimiter, BuildError> {
    with_current(|limiter| Ok(limiter.clone()), Err)
}

/// Acts on the limiter that an annotated function called here would use.
#[inline]
pub(crate) fn with_current<R>(
    act: impl FnOnce(&RateLimiter) -> R,
    failed: impl FnOnce(BuildError) -> R,
) -> R {
    let scoped = if SCOPES.is_done() { scoped() } else { None };
    let limiter = match scoped.as_ref().or_else(|| GLOBAL.get()) {
        Some(limiter) => limiter,
        None => match GLOBAL.get_or_try_init(from_environment) {
            Ok(limiter) => limiter,
            Err(error) => return failed(error),
        },
    };
    act(limiter)
}

fn scoped() -> Option<RateLimiter> {
    SCOPED.try_with(Clone::clone).ok()
}

impl RateLimiter {
    /// Runs `future` with this limiter in the place of the process-wide one, for tests.
    ///
    /// It covers what `future` awaits, not tasks that it spawns.
    ///
    /// ```
    /// use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};
    ///
    /// #[rate_limit(period = "1h", threshold = 1)]
    /// async fn report() -> Result<(), Rejection> {
    ///     Ok(())
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// for _ in 0..3 {
    ///     // Each round counts for itself.
    ///     assert!(RateLimiter::embedded().scope(report()).await.is_ok());
    /// }
    /// # }
    /// ```
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        SCOPES.done();
        SCOPED.scope(self.clone(), future)
    }

    /// The limiter that is built when none is set: on the Redis at `RATELIMIT_REDIS_URL`, or
    /// embedded when that is unset or empty.
    ///
    /// # Errors
    ///
    /// [`BuildError`] when the variable cannot be used.
    pub fn from_environment() -> Result<Self, BuildError> {
        let url = match std::env::var(URL_VARIABLE) {
            Ok(url) if !url.is_empty() => url,
            Err(std::env::VarError::NotUnicode(_)) => {
                return Err(BuildError::InvalidUrl { message: "it is not UTF-8".into() });
            }
            _ => return Ok(Self::embedded()),
        };
        #[cfg(feature = "redis")]
        return Self::builder().redis(url).build();
        #[cfg(not(feature = "redis"))]
        {
            let _ = url;
            Err(BuildError::RedisDisabled)
        }
    }
}

fn from_environment() -> Result<RateLimiter, BuildError> {
    let built = RateLimiter::from_environment();
    match &built {
        Ok(limiter) => tracing::info!(
            store = ?limiter.source(),
            "rate limits {}",
            match limiter.source() {
                Source::Redis => "will be counted in the Redis at RATELIMIT_REDIS_URL; the first \
                                  decision connects to it",
                _ => "are counted in this process: RATELIMIT_REDIS_URL is not set",
            }
        ),
        Err(error) => {
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                tracing::error!(%error, "RATELIMIT_REDIS_URL: no rate limit can be decided");
            });
        }
    }
    built
}

/// There already is a process-wide limiter. Holds the one that was to be set.
#[derive(Clone)]
pub struct SetGlobalError(pub RateLimiter);

impl fmt::Debug for SetGlobalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SetGlobalError").field(&self.0).finish()
    }
}

impl fmt::Display for SetGlobalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the process-wide rate limiter is already set: call `set_global` once, before the \
             first limited call",
        )
    }
}

impl std::error::Error for SetGlobalError {}
