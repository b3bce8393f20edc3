//! The `#[rate_limit]` attribute. Depend on `ratelimit-runtime`, which re-exports it: what the
//! attribute writes calls that crate.
//!
//! One attribute becomes code in three steps: `Args` and `Function` say what was written, `Guard`
//! what it means, and `expand` writes it.

mod args;
mod boxed;
mod diagnostics;
mod duration;
mod expand;
mod format;
mod function;
mod guard;
mod key;
mod limit;
#[cfg(test)]
mod nonsense;
mod policy;
mod rewrite;
#[cfg(test)]
mod snapshots;
mod values;

/// Limits how often an async function runs. A call above the limit is refused before the body
/// starts.
///
/// ```
/// use ratelimit_runtime::{Rejection, rate_limit};
///
/// #[rate_limit(period = 30, threshold = 2, key = user_id)]
/// async fn say_hi(user_id: u64) -> Result<String, Rejection> {
///     Ok(format!("hi {user_id}"))
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// assert!(say_hi(1).await.is_ok());
/// assert!(say_hi(1).await.is_ok());
/// assert!(say_hi(1).await.is_err()); // the third within 30 seconds
/// assert!(say_hi(2).await.is_ok());
/// # }
/// ```
///
/// # Arguments
///
/// | argument | form | meaning |
/// | --- | --- | --- |
/// | [`period`](#period-and-threshold) | `30`, `0.5`, `"250ms"`, `"1h30m"`, or the path of a `const` of type `Duration` | required; a bare number is seconds; the units are `us`, `ms`, `s`, `m`, `h`, `d` |
/// | [`threshold`](#period-and-threshold) | an integer, or the path of a `const` of type `u32` | required; the cost admitted per period |
/// | [`algo`](#algo-and-burst) | `"sliding"`, `"fixed"`, `"sliding_counter"`, `"token_bucket"`, `"leaky_bucket"` | how it is counted; default `"sliding"` |
/// | [`burst`](#algo-and-burst) | like `threshold` | capacity of a bucket; default: `threshold` for a token bucket, 1 for a leaky one |
/// | [`align`](#align) | `"utc"`, `"+08:00"`, `"-03:30"` | `"fixed"` windows start at calendar boundaries there; the period divides a day or is whole days |
/// | [`key`](#key) | an expression, or a format string | what is counted separately; default: all calls together |
/// | [`cost`](#cost) | an expression of type `u32` | what one call takes; default 1 |
/// | [`name`](#name) | a string literal | the identity of the limit; default `crate::module::function` |
/// | [`limit(…)`](#several-limits) | a group of `period`, `threshold`, `algo`, `burst`, `align`, `key`, `cost`, `name`; any number of them | several limits decided together |
/// | [`scope`](#scope) | `"global"`, `"process"` | who counts together: all who use the store, or this process by itself; default `"global"` |
/// | [`on_error`](#on_error) | `"local"`, `"allow"`, `"deny"` | what to do when Redis cannot decide: decide in this process, admit, refuse; default as the limiter was built, there `"local"` |
/// | [`shadow`](#shadow) | `true` | decide and count, and never refuse |
/// | [`wait`](#wait) | like `period` | wait up to that long for the permit, first come first served, instead of being refused at once |
/// | [`lease`](#lease) | like `threshold` | pay Redis for up to that many calls of a key at once, and let them pass without asking; 1 or more |
/// | [`on_limited`](#what-a-refused-call-returns) | a path or a closure, `FnOnce(Rejection) -> ReturnType` | makes the value that a refused call returns |
/// | `crate` | a path | where the runtime is, if a crate re-exports it; default `::ratelimit_runtime` |
///
/// ## `period` and `threshold`
///
/// ```
/// # use ratelimit_runtime::{Rejection, rate_limit};
/// # use std::time::Duration;
/// const PER_MINUTE: u32 = 100;
/// const QUARTER: Duration = Duration::from_secs(15 * 60);
///
/// #[rate_limit(period = "1m", threshold = PER_MINUTE)]
/// async fn minutely() -> Result<(), Rejection> {
///     Ok(())
/// }
///
/// struct Mailer;
///
/// impl Mailer {
///     const MAILS: u32 = 20;
///
///     #[rate_limit(period = QUARTER, threshold = Self::MAILS)]
///     async fn send(&self) -> Result<(), Rejection> {
///         Ok(())
///     }
/// }
/// ```
///
/// Literals are checked while the attribute is read, constants behind a path when code is generated for
/// the function. A value that is known at run time only is a `Limit` used by hand, with
/// `RateLimiter::check`.
///
/// ## `algo` and `burst`
///
/// ```
/// # use ratelimit_runtime::{Rejection, rate_limit};
/// /// 50 at once, then 10 a second.
/// #[rate_limit(period = 1, threshold = 10, algo = "token_bucket", burst = 50)]
/// async fn search() -> Result<(), Rejection> {
///     Ok(())
/// }
///
/// /// One every 100 milliseconds.
/// #[rate_limit(period = 1, threshold = 10, algo = "leaky_bucket")]
/// async fn call_downstream() -> Result<(), Rejection> {
///     Ok(())
/// }
/// ```
///
/// ## `align`
///
/// Another align is another count, as another period is: while a deployment changes it, a key can use
/// the limit once under each.
///
/// ```
/// # use ratelimit_runtime::{Rejection, rate_limit};
/// /// A day begins at midnight in Singapore. A period of seven days begins on Monday.
/// #[rate_limit(period = "1d", threshold = 1_000, algo = "fixed", align = "+08:00")]
/// async fn daily() -> Result<(), Rejection> {
///     Ok(())
/// }
/// ```
///
/// ## `key`
///
/// An expression may use everything in scope at the start of the function. It is borrowed, each element
/// of a tuple by itself, so the body still owns its arguments. Its type implements `Key`.
///
/// A format string names arguments of the function, or fields of them, of any type that can be
/// formatted. Each is delimited in the key: `"{a}:{b}"` keeps `a = "x:y", b = "z"` and
/// `a = "x", b = "y:z"` apart.
///
/// ```
/// # use ratelimit_runtime::{Rejection, rate_limit};
/// # struct User { id: u64 }
/// #[rate_limit(period = 1, threshold = 10, key = (tenant, user.id))]
/// async fn by_expression(tenant: String, user: User) -> Result<String, Rejection> {
///     Ok(tenant)
/// }
///
/// #[rate_limit(period = 1, threshold = 10, key = "{tenant}:{user.id:08x}")]
/// async fn by_format(tenant: String, user: User) -> Result<String, Rejection> {
///     Ok(tenant)
/// }
/// ```
///
/// ## `cost`
///
/// ```
/// # use ratelimit_runtime::{Rejection, rate_limit};
/// #[rate_limit(period = "1m", threshold = 10_000, cost = rows / 100 + 1)]
/// async fn export(rows: u32) -> Result<(), Rejection> {
///     Ok(())
/// }
/// ```
///
/// A cost of 0 is admitted and takes nothing; one above the capacity is never admitted.
///
/// ## `name`
///
/// Functions whose limits have one name, one algorithm and one period share their counts. The default
/// name is `crate::module::function`, without the type: it does not tell two types in one module apart.
/// If both have a limited method `get`, give each a `name`, as to functions of one name that are nested
/// in others; two functions that share a default name are reported by a `tracing` warning. Give one as
/// well if the counts are to survive that the function is moved or renamed.
///
/// All instances of a generic function have one name, and so one count. If each is to have its own, the
/// type is the key, or a part of it: `key = std::any::type_name::<T>()`.
///
/// ```
/// # use ratelimit_runtime::{Rejection, rate_limit};
/// # struct Cat; struct Dog;
/// impl Cat {
///     #[rate_limit(period = 1, threshold = 10, name = "cat.feed")]
///     async fn feed(&self) -> Result<(), Rejection> {
///         Ok(())
///     }
/// }
///
/// impl Dog {
///     #[rate_limit(period = 1, threshold = 10, name = "dog.feed")]
///     async fn feed(&self) -> Result<(), Rejection> {
///         Ok(())
///     }
/// }
/// ```
///
/// ## Several limits
///
/// ```
/// # use ratelimit_runtime::{Rejection, rate_limit};
/// #[rate_limit(
///     limit(period = "1s", threshold = 10, algo = "token_bucket", key = user),
///     limit(period = "1d", threshold = 5_000, key = tenant),
/// )]
/// async fn query(tenant: &str, user: u64) -> Result<(), Rejection> {
///     Ok(())
/// }
/// ```
///
/// admits a call if all limits do, and charges none if one refuses; that is one decision, atomic on Redis
/// as well. The rejection is that of the limit with the longest wait. A `key` and a `cost` beside the
/// groups go for the limits without their own, and are evaluated once. Each limit counts under the name
/// of the function and its place in the list, `#1`, `#2` and so on: give them names if they may move.
///
/// ## `scope`
///
/// ```
/// # use ratelimit_runtime::{Rejection, rate_limit};
/// /// Protects this machine, however many there are.
/// #[rate_limit(period = 1, threshold = 4, scope = "process")]
/// async fn resize_image() -> Result<(), Rejection> {
///     Ok(())
/// }
/// ```
///
/// ## `on_error`
///
/// ```
/// # use ratelimit_runtime::{Rejection, rate_limit};
/// /// Rather nobody than anybody.
/// #[rate_limit(period = "1h", threshold = 5, key = user, on_error = "deny")]
/// async fn reset_password(user: &str) -> Result<(), Rejection> {
///     Ok(())
/// }
/// ```
///
/// ## `shadow`
///
/// ```
/// # use ratelimit_runtime::rate_limit;
/// /// Every call goes on; the counts show what the limit would have done.
/// #[rate_limit(period = "1m", threshold = 100, key = user, shadow = true)]
/// async fn on_trial(user: u64) -> Option<()> {
///     Some(())
/// }
/// ```
///
/// ## `wait`
///
/// ```
/// # use ratelimit_runtime::{Rejection, rate_limit};
/// /// Ten a second, evenly, for all callers together; nobody stands in line for more than five seconds.
/// #[rate_limit(period = 1, threshold = 10, algo = "leaky_bucket", wait = "5s")]
/// async fn call_partner() -> Result<(), Rejection> {
///     Ok(())
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let start = std::time::Instant::now();
/// for _ in 0..3 {
///     call_partner().await.unwrap();
/// }
/// assert!(start.elapsed().as_millis() >= 200);
/// # }
/// ```
///
/// Calls are admitted first come, first served: with a bucket those of all processes, which book their
/// moment ahead in one step of the store; with the other algorithms, and with several limits, those of
/// one process among themselves that have all their keys in common. With a bucket alone, a call that
/// cannot be admitted in time is refused at once; with the others, as soon as that is known.
///
/// One that is dropped while it waits gives back what it booked, and those of its cost behind it in its
/// process move up. When a call of another process, or of another cost, has booked behind it, its moment
/// goes to the next of its cost here, or passes unused: never is more admitted for it.
///
/// ## `lease`
///
/// ```
/// # use ratelimit_runtime::{Rejection, rate_limit};
/// /// A key that is called a million times a minute asks Redis some thousand times.
/// #[rate_limit(period = "1m", threshold = 1_000_000, key = tenant, lease = 1_000)]
/// async fn hot(tenant: &str) -> Result<(), Rejection> {
///     Ok(())
/// }
/// ```
///
/// Units of a busy key are charged in advance, and spent in this process without a round trip. Never is
/// more admitted for it. What it costs: up to so many units of each process may stand idle for a
/// hundredth of the period, and for a second at most; and the limit is counted by that much more strictly,
/// under a key of its own. `Limit::lease` says it in full. On the embedded store, nothing changes.
///
/// # What a refused call returns
///
/// What `FromRejection` makes of the `Rejection`: an `Err` if the error is `From<Rejection>`, and `None`
/// for an `Option`. A function that returns anything else says what with `on_limited`. A closure may use
/// the arguments of the function; it is called and not awaited.
///
/// ```
/// # use ratelimit_runtime::{Rejection, rate_limit};
/// enum Error {
///     Busy(Rejection),
///     NotFound,
/// }
///
/// impl From<Rejection> for Error {
///     fn from(rejection: Rejection) -> Self {
///         Self::Busy(rejection)
///     }
/// }
///
/// #[rate_limit(period = 1, threshold = 10)]
/// async fn own_error() -> Result<String, Error> {
///     Err(Error::NotFound)
/// }
///
/// #[rate_limit(
///     period = 1,
///     threshold = 10,
///     on_limited = |rejection| format!("{name}, {rejection}")
/// )]
/// async fn no_error(name: &str) -> String {
///     format!("hi {name}")
/// }
/// ```
///
/// A function that returns `impl Trait` hides its type. There, the value is wrapped in a
/// `Result<_, Rejection>`, which has to implement the trait, as it does for the response traits of web
/// frameworks. Not so with `on_limited`: then both return one type, and nothing is wrapped.
///
/// # What becomes of the function
///
/// A check is put in front of the body, which is left as it is, and so are signature, lifetimes, `?`,
/// the order in which arguments are dropped, and whether the future is `Send`. (In a function that
/// returns `impl Trait`, the body moves into an `async move` block: what it uses of the arguments is
/// dropped before the rest.) Key and cost are evaluated first, in that order; the decision is then
/// awaited without holding on to them.
///
/// A future that is dropped before it is polled has not been counted. One that is dropped while Redis
/// decides may have been, once. A function that calls itself is checked by each call.
///
/// # Together with other attributes
///
/// Any order works, but for those that make a plain function of an async one: `#[tokio::main]` and
/// `#[tokio::test]` stand below this one. Attributes above it wrap the check, attributes below it wrap
/// what the check lets through: under `#[tracing::instrument]`, a refused call has a span; above it,
/// none. Two
/// `#[rate_limit]` on one function are an error: they are two `limit(…)` in one.
///
/// On a method of an `#[async_trait]`, put it on the method. A parameter that is taken apart by a pattern
/// cannot be part of the key there.
///
/// # Coming from Java
///
/// | there | here |
/// | --- | --- |
/// | Redisson `trySetRate(OVERALL, 10, 1, SECONDS)` | `period = 1, threshold = 10` |
/// | Redisson `PER_CLIENT` | `scope = "process"` |
/// | Redisson `tryAcquire(permits, timeout)` | `cost = permits, wait = "…"` |
/// | Spring tutorials' `@RateLimit(period, count, key = "#userId")` | `period, threshold, key = user_id` |
/// | resilience4j `limitForPeriod`, `limitRefreshPeriod` | `threshold`, `period`, with `algo = "fixed"` |
/// | resilience4j `timeoutDuration`, `fallbackMethod` | `wait`, `on_limited` |
/// | Bucket4j starter `capacity`, `refill` | `algo = "token_bucket"` with `burst`, and `threshold` per `period` |
/// | Bucket4j starter, several bandwidths | `limit(…)`, repeated |
/// | Sentinel `count`, flow control "rate limiter" (queueing) | `threshold`, with `algo = "leaky_bucket"` and `wait` |
/// | Sentinel `blockHandler` | `on_limited` |
#[proc_macro_attribute]
pub fn rate_limit(
    arguments: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    rewrite::rewrite(arguments.into(), &item.into()).into()
}
