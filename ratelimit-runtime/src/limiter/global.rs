//! The limiter that annotated functions use: the limiter of the task, if one is scoped to it, or the process-wide
//! limiter.

use std::fmt;

use once_cell::sync::OnceCell;

use super::settings::report_unknown;
use super::{Builder, RateLimiter, RateLimiterSettings};
use crate::limit::Scope;
use crate::printing::error_by_text;
use crate::reply::{BuildError, Source};
use crate::report;

static GLOBAL: OnceCell<RateLimiter> = OnceCell::new();

tokio::task_local! {
    static SCOPED: RateLimiter;
}

/// Set when the first limiter is scoped. Saves the lookup of a scoped limiter until then
/// (`benches/all -- attribute`).
static SCOPED_ONCE: OnceCell<()> = OnceCell::new();

/// Set by [`RateLimiter::require_scope`].
static SCOPE_REQUIRED: OnceCell<()> = OnceCell::new();

/// Sets the limiter that annotated functions of this process use.
///
/// Call it once, when the application starts, and never in a library. If no limiter is set before the first
/// call, that call builds one by the [settings](RateLimiterSettings) in the environment: on the Redis at
/// `RATELIMIT_REDIS_URL`, or on the embedded store if the variable is unset or empty. If a setting is invalid, all
/// calls are rejected, except those of limits with [`Scope::Process`], and an `ERROR` event reports it once for each
/// limit.
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
/// [`SetGlobalError`] when a process-wide limiter is already set. The error contains `limiter`.
pub fn set_global(limiter: RateLimiter) -> Result<(), SetGlobalError> {
    GLOBAL.set(limiter).map_err(SetGlobalError)
}

/// Returns the limiter that an annotated function would use if it were called here.
///
/// # Errors
///
/// [`BuildError`] when a setting in the environment is invalid, or needs a feature that this build lacks. The next call
/// tries again.
pub fn current() -> Result<RateLimiter, BuildError> {
    with_current(None, || Scope::Global, |limiter| Ok(limiter.clone()), Err)
}

/// Calls `act` with the limiter that is given, or with the one that an annotated function called here would use. Calls
/// `failed` if that cannot be built. Limits of the [`Scope::Process`], which `scope` returns, do not need the Redis at
/// the URL.
#[inline]
pub(crate) fn with_current<R>(
    given: Option<&RateLimiter>,
    scope: impl FnOnce() -> Scope,
    act: impl FnOnce(&RateLimiter) -> R,
    failed: impl FnOnce(BuildError) -> R,
) -> R {
    if let Some(limiter) = given {
        return act(limiter);
    }
    let scoped = scoped();
    if scoped.is_none() && SCOPE_REQUIRED.get().is_some() {
        return failed(BuildError::NoScope);
    }
    let limiter = match scoped.as_ref().or_else(|| GLOBAL.get()) {
        Some(limiter) => limiter,
        None => match built_from_environment() {
            Ok(limiter) => limiter,
            Err(_) if scope() == Scope::Process => without_redis(),
            Err(error) => return failed(error),
        },
    };
    act(limiter)
}

/// Calls `act` with the limiter that an annotated function called here would use, unless its call would build one.
pub(crate) fn with_set<R>(act: impl FnOnce(&RateLimiter) -> R) -> Option<R> {
    scoped().as_ref().or_else(|| GLOBAL.get()).map(act)
}

/// Returns `future` in the scope that is current here, for a task: `tokio::spawn` leaves the scope of its caller.
/// Outside of a scope, as in production, it changes nothing.
///
/// ```
/// use ratelimit_runtime::{RateLimiter, Rejection, in_scope, rate_limit};
///
/// #[rate_limit(period = "1h", threshold = 1)]
/// async fn report() -> Result<(), Rejection> {
///     Ok(())
/// }
///
/// /// Starts a task, and is tested in a scope.
/// async fn start() -> Result<(), Rejection> {
///     tokio::spawn(in_scope(report())).await.expect("no panic")
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// for _ in 0..3 {
///     assert!(RateLimiter::embedded().scope(start()).await.is_ok());
/// }
/// # }
/// ```
pub fn in_scope<F: Future>(future: F) -> impl Future<Output = F::Output> + use<F> {
    let scoped = scoped();
    async move {
        match scoped {
            Some(limiter) => limiter.scope(future).await,
            None => future.await,
        }
    }
}

#[inline]
fn scoped() -> Option<RateLimiter> {
    if SCOPED_ONCE.get().is_some() { SCOPED.try_with(Clone::clone).ok() } else { None }
}

impl RateLimiter {
    /// Runs `future` with this limiter instead of the process-wide one, for tests.
    ///
    /// The limiter applies to everything that `future` awaits, but not to tasks that it spawns: see [`in_scope`] and
    /// [`require_scope`](Self::require_scope).
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
    ///     // Each round has its own counts.
    ///     assert!(RateLimiter::embedded().scope(report()).await.is_ok());
    /// }
    /// # }
    /// ```
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        let _ = SCOPED_ONCE.set(());
        SCOPED.scope(self.clone(), future)
    }

    /// From now on, rejects the calls of annotated functions outside of a [scope](Self::scope), with
    /// [`Rejection::Mistake`](crate::Rejection::Mistake) and [`BuildError::NoScope`]. Call it in each test that uses a
    /// scope: a task that leaves its scope by mistake then fails the test, and does not count in the limiter of the
    /// process. It cannot be undone.
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
    /// RateLimiter::require_scope();
    /// let in_a_task = async { tokio::spawn(report()).await.expect("no panic") };
    /// let rejection = RateLimiter::embedded().scope(in_a_task).await.unwrap_err();
    /// assert!(matches!(rejection, Rejection::Mistake { .. }));
    /// # }
    /// ```
    pub fn require_scope() {
        let _ = SCOPE_REQUIRED.set(());
    }

    /// Builds the limiter that annotated functions use if no limiter is set: by the
    /// [settings](RateLimiterSettings::from_environment) in the environment, so on the Redis at `RATELIMIT_REDIS_URL`,
    /// or on the embedded store if the variable is unset or empty.
    ///
    /// # Errors
    ///
    /// [`BuildError`] when a setting is invalid, or needs a feature that this build lacks.
    pub fn from_environment() -> Result<Self, BuildError> {
        RateLimiterSettings::from_environment()?.builder()?.build()
    }
}

/// Returns the process-wide limiter. Builds it if there is none.
#[cold]
fn built_from_environment() -> Result<&'static RateLimiter, BuildError> {
    let mut unknown = None;
    let built = GLOBAL.get_or_try_init(|| {
        let (settings, others) = RateLimiterSettings::read_environment()?;
        unknown = Some(others);
        settings.builder()?.build_unreported()
    });
    // Reported once the cell is set, because subscribers and recorders can call limited functions.
    if let (Ok(limiter), Some(unknown)) = (&built, unknown) {
        report::describe();
        report_unknown(&unknown);
        tracing::info!(
            store = ?limiter.source(),
            "rate limits {}",
            match limiter.source() {
                Source::Redis => "will be counted in the Redis at RATELIMIT_REDIS_URL; the first \
                                  decision connects to it",
                _ => "are counted in this process: RATELIMIT_REDIS_URL is not set",
            }
        );
    }
    built
}

/// Returns the limiter of limits that this process counts, while the process-wide one cannot be built.
#[cold]
fn without_redis() -> &'static RateLimiter {
    static LOCAL: OnceCell<RateLimiter> = OnceCell::new();
    LOCAL.get_or_init(|| {
        let limiter = Builder::default().build_unreported();
        limiter.unwrap_or_else(|error| unreachable!("the defaults are valid: {error}"))
    })
}

/// The error of [`set_global`] if a process-wide limiter is already set. Contains the limiter that was not set.
#[derive(Clone)]
pub struct SetGlobalError(pub RateLimiter);

impl fmt::Display for SetGlobalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the process-wide rate limiter is already set: call `set_global` once, before the \
             first limited call",
        )
    }
}

error_by_text!(SetGlobalError);
