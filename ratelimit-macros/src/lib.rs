//! The `#[rate_limit]` attribute. Depend on `ratelimit-runtime`, which re-exports it: the expansion
//! calls that crate.
//!
//! The attribute is expanded in three steps: `Args` and `Function` parse the attribute and the
//! function, `Guard` validates them, and `expand` writes the limited function.

#[cfg(test)]
mod agreement;
#[cfg(test)]
mod arbitrary_input;
mod args;
mod argument;
mod boxed;
#[cfg(test)]
mod completeness;
mod diagnostics;
mod duration;
mod ending;
mod expand;
mod format;
mod function;
mod guard;
mod key;
mod key_macro;
mod limit;
mod limit_source;
mod offset;
mod policy;
mod rewrite;
#[cfg(test)]
mod snapshots;
mod spans;
mod values;
mod words;

/// Limits how often a function runs. A call above the limit is rejected before the body
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
/// assert!(say_hi(1).await.is_err()); // the third call within 30 seconds
/// assert!(say_hi(2).await.is_ok()); // another key
/// # }
/// ```
///
/// # Arguments
///
/// | argument | value | meaning | default |
/// | --- | --- | --- | --- |
/// | [`period`](#period) | `30`, `0.5`, `"250ms"`, `"1h30m"`, or a constant of type `Duration` | the length of a period | required |
/// | [`threshold`](#threshold) | an integer, or a constant of type `u32` | the number of units that a period admits | required |
/// | [`algo`](#algo) | one of five words | the algorithm: how calls are counted | `"sliding"` |
/// | [`burst`](#burst) | like `threshold` | the capacity of a bucket | `threshold` for a token bucket, 1 for a leaky bucket |
/// | [`align`](#align) | `"utc"`, or an offset such as `"+08:00"` | windows start at calendar boundaries | a window starts with the first admitted call |
/// | [`key`](#key) | an expression, or a format string | calls with different keys are counted separately | all calls share one count |
/// | [`cost`](#cost) | an expression of type `u32` | the number of units that a call takes | 1 |
/// | [`name`](#name) | a string literal | the name of the limit | `crate::module::function` |
/// | [`limit`](#limit) | the path of a constant, or a group of arguments, `limit(…)` | a limit that is declared elsewhere, or one of several limits that are decided together | one limit |
/// | [`scope`](#scope) | `"global"`, `"process"` | which processes share the count | `"global"` |
/// | [`on_error`](#on_error) | `"local"`, `"allow"`, `"deny"` | what happens to a call when Redis cannot decide | the setting of the limiter, which is `"local"` unless set |
/// | [`shadow`](#shadow) | `true` | count and report, but never reject | `false` |
/// | [`wait`](#wait) | like `period` | the longest time that a call waits before it is rejected | calls do not wait |
/// | [`lease`](#lease) | like `threshold` | the number of units that a process charges in advance | 0 |
/// | [`on_limited`](#on_limited) | a function, or a closure | makes the return value of a rejected call | the rejection is converted to the return type |
/// | [`settle`](#settle) | a function, or a closure | reads the units that the call has used from its return value | a call has used its `cost` |
/// | [`count_if`](#count_if) | a function, or a closure | decides by the return value whether the call counts | every admitted call counts |
/// | [`permit`](#permit) | the name of a variable | the permit with which the body settles the charge | the charge stays |
/// | [`close`](#close) | a function of the return value, which returns an `Option<Duration>` | for how long no call of the key is admitted | the key stays open |
/// | [`crate`](#crate) | a path | where the runtime is re-exported | `::ratelimit_runtime` |
///
/// A wrong argument is a compile error at that argument. All errors of one attribute are reported
/// at once.
///
/// To use a constant, write its path: `LIMIT`, `Self::LIMIT`, `T::LIMIT`. The attribute checks
/// literals itself. The compiler checks constants when it generates code for the function:
/// `cargo build` does this, `cargo check` does not. For values that are known only at run time, use
/// a `Limit` and `RateLimiter::check` instead of the attribute.
///
/// ## `period`
///
/// A number without quotes is in seconds. A string has units: `us`, `ms`, `s`, `m` (minutes), `h`
/// and `d`. Write the longest unit first. The shortest period is one microsecond, and the longest
/// period is 100 years.
///
/// ```
/// # use ratelimit_runtime::{Rejection, rate_limit};
/// # use std::time::Duration;
/// const QUARTER: Duration = Duration::from_secs(15 * 60);
///
/// #[rate_limit(period = "1h30m", threshold = 100)]
/// async fn literal() -> Result<(), Rejection> {
///     Ok(())
/// }
///
/// #[rate_limit(period = QUARTER, threshold = 100)]
/// async fn constant() -> Result<(), Rejection> {
///     Ok(())
/// }
/// ```
///
/// ## `threshold`
///
/// The number of units that each key can take per period. A call takes one unit, or its
/// [`cost`](#cost). The smallest threshold is 1.
///
/// ```
/// # use ratelimit_runtime::{Rejection, rate_limit};
/// struct Mailer;
///
/// impl Mailer {
///     const MAILS: u32 = 20;
///
///     #[rate_limit(period = "1h", threshold = Self::MAILS)]
///     async fn send(&self) -> Result<(), Rejection> {
///         Ok(())
///     }
/// }
/// ```
///
/// ## `algo`
///
/// | algorithm | admits |
/// | --- | --- |
/// | `"sliding"` | at most `threshold` units in any trailing period: exact, with a log of the admitted calls |
/// | `"fixed"` | at most `threshold` units in each window |
/// | `"sliding_counter"` | nearly the same as `"sliding"`: an estimate from two windows, which needs little memory |
/// | `"token_bucket"` | up to `burst` units at once, refilled by `threshold` units per period |
/// | `"leaky_bucket"` | like a token bucket, but with a `burst` of 1: evenly spaced calls |
///
/// ```
/// # use ratelimit_runtime::{Rejection, rate_limit};
/// /// One call every 100 milliseconds.
/// #[rate_limit(period = 1, threshold = 10, algo = "leaky_bucket")]
/// async fn call_downstream() -> Result<(), Rejection> {
///     Ok(())
/// }
/// ```
///
/// ## `burst`
///
/// The capacity of a bucket: the number of units that it admits at once when it is full. Only for
/// `"token_bucket"` and `"leaky_bucket"`. The smallest burst is 1, and a bucket cannot take more
/// than 100 years to fill.
///
/// ```
/// # use ratelimit_runtime::{Rejection, rate_limit};
/// /// 50 calls at once, then 10 per second.
/// #[rate_limit(period = 1, threshold = 10, algo = "token_bucket", burst = 50)]
/// async fn search() -> Result<(), Rejection> {
///     Ok(())
/// }
/// ```
///
/// ## `align`
///
/// Starts the windows of a `"fixed"` limit at calendar boundaries of UTC, or of an offset from
/// `-14:00` to `+14:00`. The period must divide a day, or be a whole number of days. A period of
/// seven days starts on Monday.
///
/// Each align has its own count. While a deployment changes the align, a key can use the whole
/// threshold under the old align, and the whole threshold again under the new align.
///
/// ```
/// # use ratelimit_runtime::{Rejection, rate_limit};
/// /// A day starts at midnight in Singapore.
/// #[rate_limit(period = "1d", threshold = 1_000, algo = "fixed", align = "+08:00")]
/// async fn daily() -> Result<(), Rejection> {
///     Ok(())
/// }
/// ```
///
/// ## `key`
///
/// Each value of the key has its own count.
///
/// An expression can use everything that is in scope at the start of the function. The attribute
/// borrows the value, and each element of a tuple, so the body still owns the arguments. The type
/// of the value must implement `Key`. These types implement it: strings, integers, `bool`, `char`,
/// IP addresses, bytes, `Uuid` (with the feature `uuid`), and tuples of up to 8 of these.
///
/// A format string names arguments of the function, or fields of them, of any type that can be
/// formatted. Each value is delimited in the key: with `"{a}:{b}"`, the values `"x:y"` and `"z"`
/// make a different key than the values `"x"` and `"y:z"`.
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
/// The number of units that a call takes. The expression can use the arguments of the function and
/// is evaluated after the key. A call of cost 0 is admitted and takes no units. A call whose cost
/// is above the capacity is rejected with `Rejection::CostExceedsCapacity`: waiting does not help.
/// The capacity is the `burst` of a bucket, or the `threshold` of any other limit. A literal cost
/// of 0 is a compile error, and so is a literal cost above a literal capacity. Of a length, write
/// `cost = u32::try_from(body.len()).unwrap_or(u32::MAX)`.
///
/// ```
/// # use ratelimit_runtime::{Rejection, rate_limit};
/// #[rate_limit(period = "1m", threshold = 10_000, cost = rows / 100 + 1)]
/// async fn export(rows: u32) -> Result<(), Rejection> {
///     Ok(())
/// }
/// ```
///
/// ## `name`
///
/// The name identifies the limit in Redis keys, logs and metrics. Limits with the same name,
/// algorithm, period and align share their counts. Set a name:
///
/// - to keep the counts when the function is moved or renamed;
/// - when two limited functions have the same default name, `crate::module::function`. The default
///   name does not contain the type or an enclosing function. So methods of two types in one module
///   can have the same default name, and so can functions inside two functions of one module. A
///   `tracing` warning reports the two functions.
///
/// All instances of a generic function share one name and one count. To count each instance
/// separately, put the type into the key: `key = std::any::type_name::<T>()`.
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
/// ## `limit`
///
/// `limit = LOGIN` takes the limit from a constant of type `Limit`. Code elsewhere can then peek at
/// the same counts, reset them, or give units back. The constant replaces `period`, `threshold`,
/// `algo`, `burst`, `align`, `lease` and `name`. The other arguments can stand beside it: `scope`,
/// `on_error`, `shadow` and `wait` override those of the constant. With another `scope`, and with a
/// `wait` on a constant with a lease, the calls are counted elsewhere than those of the constant.
///
/// ```
/// # use ratelimit_runtime::{Limit, Rejection, key, rate_limit};
/// # use std::time::Duration;
/// const LOGIN: Limit = Limit::sliding("login", 5, Duration::from_secs(15 * 60));
///
/// #[rate_limit(limit = LOGIN, key = "{tenant}:{user}")]
/// async fn log_in(tenant: u64, user: &str) -> Result<(), Rejection> {
///     Ok(())
/// }
///
/// async fn unblock(tenant: u64, user: &str) -> Result<(), Box<dyn std::error::Error>> {
///     let was_known = ratelimit_runtime::current()?.reset(&LOGIN, key!("{tenant}:{user}")).await?;
///     println!("{}", if was_known { "unblocked" } else { "no such user" });
///     Ok(())
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// # assert!(log_in(1, "ann").await.is_ok());
/// # assert!(unblock(1, "ann").await.is_ok());
/// # }
/// ```
///
/// Each `limit(…)` is one of several limits that are decided together. A call is admitted if all
/// limits admit it; otherwise, none of them is charged. The decision is one atomic request to
/// Redis; `RateLimiter::check_all` documents the exception in a cluster. The rejection is that of
/// the limit with the longest wait.
///
/// A group takes `period`, `threshold`, `algo`, `burst`, `align`, `key`, `cost`, `name`, `limit`, `settle`, `count_if`,
/// `permit` and `close`. A `key` and a `cost` beside the groups apply to the groups that do not set their own, and are
/// evaluated once. A `count_if` beside the groups applies to the groups without a correction of their own, and a
/// `close` to those without a `close` of their own. All other arguments belong beside the groups and apply to all of
/// them, except `lease`, which works with a single limit only.
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
/// The default name of a group is the `name` beside the groups, or the path of the function,
/// followed by the position of the group: `#1`, `#2` and so on. To keep the counts when groups are
/// reordered, give each group a `name`.
///
/// ## `scope`
///
/// With `"global"`, all processes that use the same store share the count. With `"process"`, each
/// process has its own count and does not use Redis for it. Such a function need not be async, if
/// its calls do not wait.
///
/// ```
/// # use ratelimit_runtime::{Rejection, rate_limit};
/// /// Protects this machine, regardless of how many machines there are.
/// #[rate_limit(period = 1, threshold = 4, scope = "process")]
/// async fn resize_image() -> Result<(), Rejection> {
///     Ok(())
/// }
///
/// #[rate_limit(period = "1m", threshold = 1, scope = "process")]
/// fn warn_of_full_disk() -> Option<()> {
///     eprintln!("the disk is almost full");
///     Some(())
/// }
/// ```
///
/// ## `on_error`
///
/// Sets what happens to a call when Redis is unreachable, too slow, or replies with an error:
///
/// - `"local"`: this process decides, by the same limit, on separate counts. A fleet of `n`
///   processes can then admit `n` times the limit, unless `Builder::instances` is set.
/// - `"allow"`: the call is admitted.
/// - `"deny"`: the call is rejected with `Rejection::Unavailable`.
///
/// ```
/// # use ratelimit_runtime::{Rejection, rate_limit};
/// /// While Redis is unreachable, no password can be reset.
/// #[rate_limit(period = "1h", threshold = 5, key = user, on_error = "deny")]
/// async fn reset_password(user: &str) -> Result<(), Rejection> {
///     Ok(())
/// }
/// ```
///
/// ## `shadow`
///
/// With `shadow = true`, calls are decided, counted and reported as usual, but no call is rejected.
/// Use it to try a limit in production.
///
/// ```
/// # use ratelimit_runtime::rate_limit;
/// /// Logs and metrics show which calls the limit would reject.
/// #[rate_limit(period = "1m", threshold = 100, key = user, shadow = true)]
/// async fn on_trial(user: u64) -> Option<()> {
///     Some(())
/// }
/// ```
///
/// ## `wait`
///
/// A call that cannot be admitted now waits up to this duration. Waiting needs a tokio runtime with
/// time enabled.
///
/// ```
/// # use ratelimit_runtime::{Rejection, rate_limit};
/// /// Ten calls a second, evenly spaced, from all processes. No call waits for more than five seconds.
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
/// What a waiting call can rely on:
///
/// - **In time.** It is admitted within `wait`, or rejected. It is rejected at once if the calls before
///   it already take too long. If Redis is slow, the result comes one deadline later at most.
/// - **In order.** In a process, calls with the same limits and keys are admitted first come, first
///   served: in the order in which their futures are polled for the first time. A call with a high cost
///   is not overtaken by calls with lower costs that wait as well.
/// - **Independent.** Other calls that are dropped, that are not polled, or whose runtime stands still
///   do not hold it up.
/// - **Nothing is lost.** A call that is dropped while it waits takes no units: its turn passes to the
///   next call, or its units go back to the store.
///
/// The processes of a fleet ask Redis separately, each for all its waiting calls together: one request
/// at a time, and while calls wait, at most one every 5 ms. With a single limit that is a bucket, a
/// process reserves moments for its calls, up to a second ahead. So the order also holds across
/// processes as long as no call has to wait longer than a second; with longer lines, the processes
/// share the rate. With the other algorithms, and with several limits, the processes compete for units
/// that become free.
///
/// `retry_after` of a rejected call is the time until the call is admitted *without* waiting: a call with
/// `wait` can try again earlier by its wait. A `wait` just as long as the calls before it need leaves no
/// time for a wakeup that comes late: choose it a little longer.
///
/// If Redis fails while calls wait, those with a reserved moment still run; `on_error` decides the others
/// at the next request of their line.
///
/// What it cannot rely on:
///
/// - When another process gives units back, this process observes it within a second.
/// - A process that is killed loses its reservations: about a second of the bucket passes unused.
///   `RateLimiter::shutdown` cancels them.
/// - The store charges the units before the call takes its turn. If the call is not polled in time, its
///   turn passes on after half a deadline, and the units go back after a deadline. So a call can start
///   up to one deadline after its process has received the units.
///
/// ## `lease`
///
/// A process charges up to `lease` units of a busy key in advance and spends them locally, without
/// a round trip. The limit still holds exactly.
///
/// ```
/// # use ratelimit_runtime::{Rejection, rate_limit};
/// /// For a million calls per minute, a process sends a few thousand requests to Redis.
/// #[rate_limit(period = "1m", threshold = 1_000_000, key = tenant, lease = 1_000)]
/// async fn hot(tenant: &str) -> Result<(), Rejection> {
///     Ok(())
/// }
/// ```
///
/// The price: up to `lease` units per process can sit unused while another process rejects calls.
/// After a hundredth of the period, at most a second, the process gives unused units back. The limit
/// is also stricter: with `"sliding"` and `"sliding_counter"`, the period is longer by that time; a bucket is smaller
/// by the tokens that refill in that time. With `"sliding"` and `"sliding_counter"`, adding or
/// removing `lease` starts new counts. `Limit::try_lease` documents the details. The period must be
/// at least 100 milliseconds, and `lease` cannot be above the number of units that can be admitted
/// at once. `lease` changes nothing on the embedded store.
///
/// ## `on_limited`
///
/// Makes the value that a rejected call returns. It takes the `Rejection` and returns a value of
/// the return type of the function. A closure can use the arguments of the function. The result is
/// not awaited.
///
/// ```
/// # use ratelimit_runtime::rate_limit;
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
/// ## `settle`
///
/// Corrects the charge once the call has ended. A call is charged its [`cost`](#cost) before it runs: an estimate.
/// `settle` takes a reference to the return value, and returns the units that the call has really used, as a `u32`.
/// What was not used is given back. What was used beyond the estimate is charged, also above the limit: no call is
/// admitted while the count is above the limit. `Permit` documents it exactly.
///
/// ```
/// # use ratelimit_runtime::{Rejection, rate_limit};
/// struct Answer {
///     text: String,
///     tokens: u32,
/// }
///
/// #[rate_limit(
///     period = "1m", threshold = 100_000, key = team,
///     cost = prompt.len() as u32 / 3 + 500,
///     settle = |result| result.as_ref().map_or(0, |answer| answer.tokens),
/// )]
/// async fn complete(team: &str, prompt: &str) -> Result<Answer, Rejection> {
///     Ok(Answer { text: format!("{prompt} …"), tokens: 7 })
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// assert!(complete("acme", "Once upon a time").await.is_ok());
/// # }
/// ```
///
/// A call that panics, or whose future is dropped, keeps its charge. The result is not awaited, and on Redis, the
/// charge is corrected in the background: it delays no response. `settle` sees the return value only, and arguments
/// that can be copied as they were at the start. An argument that the body has moved is gone then: return what `settle`
/// needs, or use [`permit`](#permit). `settle`, `count_if` and `permit` exclude each other, and `lease`. With
/// `-> impl Trait`, use `permit`.
///
/// ## `count_if`
///
/// Keeps the charge of a call only if it counts. It takes a reference to the return value, and returns a `bool`. A call
/// that does not count gives its units back when it ends. Until then they are charged: however many calls run
/// at the same time, no more of them can count than the limit admits.
///
/// ```
/// # use ratelimit_runtime::{Rejection, rate_limit};
/// # #[derive(Debug)]
/// # enum LoginError { WrongPassword, Busy(Rejection) }
/// # impl From<Rejection> for LoginError {
/// #     fn from(rejection: Rejection) -> Self { Self::Busy(rejection) }
/// # }
/// /// Five wrong passwords in fifteen minutes; logins that succeed are free.
/// #[rate_limit(period = "15m", threshold = 5, key = user, count_if = Result::is_err)]
/// async fn log_in(user: &str, password: &str) -> Result<(), LoginError> {
///     if password == "secret" { Ok(()) } else { Err(LoginError::WrongPassword) }
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// for _ in 0..100 {
///     log_in("ann", "secret").await.unwrap();
/// }
/// # }
/// ```
///
/// ## `permit`
///
/// The name of a variable of the body: a `Permit`, with which the body settles the charge itself. Use it for a call
/// whose cost is known before it ends, such as a stream, and pass the permit on to whatever ends last.
///
/// ```
/// # use ratelimit_runtime::{Rejection, rate_limit};
/// #[rate_limit(period = "1m", threshold = 1_000_000, key = team, cost = 10_000, permit = bytes)]
/// async fn download(team: &str) -> Result<Vec<u8>, Rejection> {
///     let file = vec![0; 1_200];
///     bytes.settle(file.len() as u32);
///     Ok(file)
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// assert!(download("acme").await.is_ok());
/// # }
/// ```
///
/// ## `close`
///
/// Closes the key by the result of a call: `close` takes a reference to the return value, and returns for how long no
/// call of the key is admitted, or `None`. Use it for a service that says when it takes calls again, by `Retry-After`.
/// Calls that [wait](#wait) go on once the key opens; others are rejected with `Rejection::Closed`. With Redis, the key
/// is closed for all processes. `RateLimiter::close` does the same by hand, and documents it exactly.
///
/// ```
/// # use std::time::Duration;
/// # use ratelimit_runtime::{Rejection, rate_limit};
/// # #[derive(Debug)]
/// enum HttpError {
///     Status { code: u16, retry_after: Option<Duration> },
///     Limited(Rejection),
/// }
///
/// impl HttpError {
///     fn retry_after(&self) -> Option<Duration> {
///         match self {
///             Self::Status { code: 429 | 503, retry_after } => *retry_after,
///             _ => None,
///         }
///     }
/// }
/// # impl From<Rejection> for HttpError {
/// #     fn from(rejection: Rejection) -> Self { Self::Limited(rejection) }
/// # }
///
/// #[rate_limit(
///     period = 1, threshold = 10, algo = "leaky_bucket", key = host,
///     close = |result| result.as_ref().err().and_then(HttpError::retry_after),
/// )]
/// async fn call(host: &str) -> Result<String, HttpError> {
///     Err(HttpError::Status { code: 429, retry_after: Some(Duration::from_secs(30)) })
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// assert!(matches!(call("api.example.com").await, Err(HttpError::Status { .. })));
/// assert!(matches!(call("api.example.com").await, Err(HttpError::Limited(Rejection::Closed { .. }))));
/// # }
/// ```
///
/// `close` can stand beside `settle`, `count_if` and `permit`, but not beside `lease`. Like them, it sees the return
/// value only, and delays no response: on Redis, the background closes the key. This process obeys at once.
///
/// ## `crate`
///
/// The path of the runtime. Set it in a crate that does not depend on the runtime directly, but on
/// a crate that re-exports the runtime.
///
/// ```
/// mod my_crate {
///     pub use ratelimit_runtime as limits;
/// }
///
/// #[my_crate::limits::rate_limit(period = 1, threshold = 10, crate = my_crate::limits)]
/// async fn search() -> Result<(), my_crate::limits::Rejection> {
///     Ok(())
/// }
/// ```
///
/// # The return value of a rejected call
///
/// Without `on_limited`, the return type decides:
///
/// | return type | value of a rejected call |
/// | --- | --- |
/// | `Result<_, E>` where `E: From<Rejection>` | `Err`, with the rejection converted to `E` |
/// | `Option<_>` | `None` |
/// | a type of yours that implements `FromRejection` | as implemented |
/// | `impl Trait` | `Err`, with the rejection; see below |
/// | `Response`, `StatusCode`, `(StatusCode, String)`, `HttpResponse`, with the feature of a framework | the response of the rejection |
/// | any other type | compile error: set [`on_limited`](#on_limited) |
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
/// ```
///
/// If the return type is `impl Trait`, the function returns a `Result<_, Rejection>`. Its `Ok`
/// contains the value of the body. This `Result` has to implement the trait, as it does for the
/// response traits of web frameworks. With `on_limited`, the function returns the value of the body
/// itself.
///
/// # How the function changes
///
/// The attribute puts a check in front of the body and does not change the body. These stay the
/// same: the signature, lifetimes, `?`, the order in which arguments are dropped, and whether the
/// future is `Send`. If the function returns `impl Trait` without `on_limited`, the body moves into
/// an `async move` block, which drops the arguments that it uses before the others.
///
/// The key is evaluated first, then the cost. The temporaries of both expressions are dropped
/// before the decision is awaited.
///
/// A call whose future is dropped before its first poll is not counted. A call whose future is
/// dropped while Redis decides is counted at most once. Each call of a recursive function is
/// checked.
///
/// # Other attributes
///
/// Put `#[tokio::main]` and `#[tokio::test]` below `#[rate_limit]`: they make an async function
/// synchronous, and `#[rate_limit]` awaits the decision. An attribute that keeps the function
/// async can stand above or below `#[rate_limit]`.
///
/// An attribute above `#[rate_limit]` wraps the check and the body; an attribute below it wraps
/// the body only. For example, a rejected call has a span if `#[tracing::instrument]` stands above
/// `#[rate_limit]`, and no span if it stands below.
///
/// Two `#[rate_limit]` on one function are an error: write two [`limit(…)`](#limit) in one
/// attribute.
///
/// In an `#[async_trait]`, put `#[rate_limit]` on the method.
///
/// # Equivalents in Java libraries
///
/// | in Java | here |
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

/// The macro that `ratelimit_runtime::key!` calls.
#[doc(hidden)]
#[proc_macro]
pub fn format_key(tokens: proc_macro::TokenStream) -> proc_macro::TokenStream {
    key_macro::expand_key(tokens.into()).into()
}
