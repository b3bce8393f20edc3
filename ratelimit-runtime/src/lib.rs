//! Rate limits for async functions, as an attribute: exact windows and buckets, in one process or in Redis for a
//! whole fleet.
//!
//! ```
//! use ratelimit_runtime::{Rejection, rate_limit};
//!
//! #[rate_limit(period = 30, threshold = 2, algo = "sliding", key = user_id)]
//! async fn say_hi(user_id: u64) -> Result<String, Rejection> {
//!     Ok(format!("hi {user_id}"))
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! assert!(say_hi(1).await.is_ok());
//! assert!(say_hi(1).await.is_ok());
//! assert!(say_hi(1).await.is_err()); // the third call by one user within 30 seconds
//! assert!(say_hi(2).await.is_ok());
//! # }
//! ```
//!
//! - [`rate_limit`](macro@rate_limit) is the attribute. A wrong argument is a compile error.
//! - [`RateLimiter`] makes the decisions, for the attribute or for your own calls. [`set_global`] sets the limiter that
//!   annotated functions use. Without it, they use the Redis at `RATELIMIT_REDIS_URL`, or the embedded store if that
//!   variable is unset.
//! - A [`Limit`] describes how much is admitted. Calls with different [`Key`]s are counted separately. A
//!   [`Decision`] is the result of a check. A [`Rejection`] is the reason why a call was not admitted.
//! - The [guides](guide): [choosing an algorithm](guide::algorithms), limits [per plan and tenant](guide::plans),
//!   [metering by result](guide::metering), [calls in flight](guide::in_flight), [testing](guide::testing),
//!   [production](guide::production), [planning for scale](guide::scale), and what [Redis](guide::redis) holds. Also
//!   [changing limits at run time](guide::rules), [a night on call](guide::night), [limits in front of a web
//!   service](guide::web), [recipes](guide::recipes), [security](guide::security), and [coming from another
//!   limiter](guide::migrating).
//!
//! # Features
//!
//! | feature | default | adds |
//! | --- | --- | --- |
//! | `attribute` | yes | the attribute, and [`key!`] |
//! | `redis` | yes | counts in Redis or Valkey, shared by a fleet |
//! | `tls` | | connections to Redis through TLS, with the cryptography that the application has installed |
//! | `tls-ring`, `tls-aws-lc` | | the same; if it has installed none, with ring or aws-lc |
//! | `axum`, `actix`, `tonic` | | [`Rejection`] as a response of the framework, middleware, clients as keys: `web` |
//! | `tower` | | the layers, for hyper, other servers, and clients such as reqwest |
//! | `stream` | | streams whose items wait for a limit: `stream` |
//! | `metrics` | | metrics of decisions; see below |
//! | `serde` | | [`Limit`] in configuration |
//! | `rules` | | rules in files and in Redis: operators change limits while the service runs |
//! | `calendar` | | months, quarters and years as periods, and time zones: [`Align`] |
//! | `uuid` | | `uuid::Uuid` as a [`Key`] |
//!
//! # Events and metrics
//!
//! Each checked call is reported once, when it receives its decision. The limiter does not report the requests that a
//! call sends while it waits, calls whose future is dropped, `peek`, `credit` and `reset`. Metrics contain no keys, and
//! events only with [`Builder::log_keys`], because a key can be personal data, and the number of different keys has no
//! bound. Without it, the field `key` of an event is a hash under a secret of the process: within one process, events
//! of one key have the same hash.
//!
//! | `tracing` event | level | fields |
//! | --- | --- | --- |
//! | a call is rejected | `DEBUG` | `limit`, `key`, `retry_after`, `source` |
//! | a call is rejected because no slot is free | `DEBUG` | `limit`, `key`, `in_flight`, `source` |
//! | a call is rejected because its cost is above the capacity | `DEBUG` | `limit`, `key`, `cost`, `capacity` |
//! | a call reaches [`Limit::notify_at`] | `WARN` | `limit`, `key`, `percent`, `used`, `remaining`, `capacity` |
//! | a [shadow](Limit::shadow) would reject a call | `DEBUG` | the fields of the rejection |
//! | no decision, also for a shadow: [`Rejection::Unavailable`] | `DEBUG` | `limit`, `error` |
//!
//! With feature `metrics`, the following metrics go to the recorder that the application installs for the
//! `metrics` facade. Install it before you build the limiter, because the limiter then describes the metrics (help
//! texts and units).
//!
//! | metric | kind | labels | value |
//! | --- | --- | --- | --- |
//! | `ratelimit_decisions_total` | counter | `limit`, `outcome`, `source` | checked calls |
//! | `ratelimit_decision_duration_seconds` | histogram | `limit`, `source` | time to decide, waits included |
//! | `ratelimit_breaker_open` | gauge | `node` | 1 while the breaker of a Redis server is open, else 0 |
//! | `ratelimit_rules_lost` | gauge | | 1 while Redis has lost the rules, else 0 (feature `rules`) |
//! | `ratelimit_waiting_calls` | gauge | `limit` | calls that [wait](Limit::wait) now |
//! | `ratelimit_wait_duration_seconds` | histogram | `limit`, `outcome` | how long calls have waited |
//! | `ratelimit_debt_units_total` | counter | `limit` | units used beyond charges: see [`Permit::settle`] |
//! | `ratelimit_settlements_lost_total` | counter | `limit` | charges that were not corrected |
//! | `ratelimit_notifications_total` | counter | `limit` | calls that have reached [`Limit::notify_at`] |
//! | `ratelimit_in_flight` | gauge | `limit` | units that running calls hold: see [`Limit::in_flight`] |
//! | `ratelimit_in_flight_lost_total` | counter | `limit` | units lost before the end of a call: see [`Permit::lost`] |
//! | `ratelimit_keys` | gauge | | keys in all embedded stores of the process |
//!
//! - Times are in seconds. A decision is timed from the call of `check`.
//! - Redis has lost the rules if it has none, and this process has read some from it before.
//! - A charge is not corrected if Redis did not reply to its settlement or replied with an error, if too many
//!   settlements were pending, or if the limiter was dropped.
//! - A key counts until the store reclaims it, also after it has expired.
//! - `limit` is the name of the limit. If several limits are decided together, an event names the limit that made the
//!   decision (see [`RateLimiter::check_all`]), and the metrics of decisions record the call for each limit.
//! - `outcome` is `allowed`, `limited`, `blocked`, `busy` (no slot is free), `cost_exceeds_capacity`, `unavailable`, or
//!   `rejected_by_another` for a limit that would have admitted a call that another limit of the same decision
//!   rejected; for a shadow `shadow_allowed`, `shadow_limited` (for each of the rejections), `unavailable` or
//!   `rejected_by_another`. The `outcome` of a wait is `admitted`, `rejected`, `failed` or `dropped`.
//! - `source` is where the decision was made: `embedded`, `redis`, `cache` (a cached rejection by Redis),
//!   `lease` (leased units), `fallback` ([`OnError`]), or `none` (no decision, or a cost above the capacity).

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
// Some links and some callers of an item are of other features.
#![cfg_attr(
    not(feature = "_all"),
    allow(dead_code, rustdoc::broken_intra_doc_links, unused_imports)
)]

/// Compiles and runs the code in the README.
#[cfg(all(doctest, feature = "redis", feature = "axum"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// Compiles and runs the code in the documentation of the attribute.
#[cfg(all(doctest, feature = "attribute", feature = "tower"))]
#[doc = include_str!("../docs/rate_limit.md")]
struct AttributeReference;

/// Guides: how to use the items of this crate together.
///
/// The links between the guides, and their pictures, are link definitions. In the files, the definitions name
/// files. The definitions here come first and win: they name pages of this documentation, and inline pictures.
///
/// All guides are in the documentation of all features. Their programs are compiled with these features.
#[cfg(all(doc, any(not(doctest), feature = "_all")))]
pub mod guide {
    macro_rules! guides {
        ($($(#[$definitions:meta])* $name:ident)+) => {$(
            $(#[$definitions])*
            #[doc = include_str!("guide_links.md")]
            #[doc = include_str!(concat!("../docs/", stringify!($name), ".md"))]
            pub mod $name {}
        )+};
    }

    guides! {
        #[doc = include_str!("../docs/pictures/inline.md")]
        algorithms
        in_flight migrating metering
        #[doc = "[production]: crate::guide::production#what-happens-when-redis-fails"]
        night
        plans production recipes redis rules scale security testing web
    }
}

mod algorithm;
mod backend;
mod background;
mod check;
mod clock;
mod key;
mod lease;
mod limit;
mod limiter;
mod local;
mod one_or_many;
mod owner;
mod printing;
mod registry;
mod reply;
mod report;
mod rules;
mod store;
#[cfg(feature = "stream")]
pub mod stream;
mod text;
mod threads;
mod waiting;
#[cfg(feature = "tower")]
pub mod web;

/// Returns the key that the attribute makes of a format string: `key!("{tenant}:{id}")` is the key of a function with
/// `key = "{tenant}:{id}"`. The format string names variables in scope, or fields of them. The key borrows nothing.
///
/// A key of the attribute that is an expression, such as `key = (tenant, id)`, is passed as it is.
///
/// ```
/// use std::time::Duration;
/// use ratelimit_runtime::{Limit, RateLimiter, Rejection, key, rate_limit};
///
/// const EXPORTS: Limit = Limit::sliding("exports", 2, Duration::from_secs(3600));
///
/// #[rate_limit(limit = EXPORTS, key = "{tenant}:{id}")]
/// async fn export(tenant: &str, id: u64) -> Result<(), Rejection> {
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// export("acme", 7).await?;
///
/// let limiter = ratelimit_runtime::current()?;
/// let (tenant, id) = ("acme", 7);
/// assert_eq!(limiter.peek(&EXPORTS, key!("{tenant}:{id}"), 1).await?.remaining, 1);
/// assert!(limiter.reset(&EXPORTS, key!("{tenant}:{id}")).await?);
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "attribute")]
#[macro_export]
macro_rules! key {
    ($($format:tt)*) => {
        $crate::__private::format_key!([$crate] $($format)*)
    };
}

#[doc(hidden)]
#[path = "expansion/mod.rs"]
pub mod __private;

#[cfg(feature = "attribute")]
pub use ratelimit_macros::rate_limit;

pub use crate::check::{Acquire, AcquireAll, Check, Meter, Part, Permit};
pub use crate::clock::{Clock, VirtualClock};
pub use crate::key::{Client, HashedKey, Key, KeySecret, KeyWriter, OwnedKey, ParseKeyError};
pub use crate::limit::{
    Algorithm, Align, Calendar, Lease, Limit, LimitError, OnError, ParseLimitError, Policy, Quota,
    Scope,
};
#[cfg(feature = "rules")]
pub use crate::limiter::rules::{
    AnnouncedLimit, AnnouncedProcess, KeysCursor, KeysPage, RuleChange, Rules, SharedRules,
};
pub use crate::limiter::{
    AnnotatedLimit, Builder, Operator, RateLimiter, RateLimiterSettings, SetGlobalError, current,
    in_scope, limits, set_global,
};
pub use crate::registry::CallCounts;
pub use crate::reply::{
    Answer, BuildError, Decision, FromRejection, Mistake, Rejection, Source, StoreError, Usage,
};
pub use crate::report::{RejectedCall, RejectedKey};
pub use crate::rules::{Rule, RuleSet, RuleSetError};
#[cfg(feature = "redis")]
pub use crate::store::redis::{Credentials, CredentialsError, CredentialsProvider, PasswordFile};
