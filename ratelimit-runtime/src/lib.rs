//! Rate limits as an attribute: exact windows and buckets, in one process or across a fleet on
//! Redis.
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
//! - [`rate_limit`](macro@rate_limit) is the attribute; wrong arguments are compile errors.
//! - [`RateLimiter`] decides, by hand or for the attribute; [`set_global`] sets the one that
//!   annotated functions use. Without it, they use the Redis at `RATELIMIT_REDIS_URL`, or the
//!   embedded store when that is unset.
//! - [`Limit`] says what is admitted, [`Key`] what is counted separately, [`Decision`] what the
//!   store answered, [`Rejection`] why a call did not go on.
#![cfg_attr(
    feature = "redis",
    doc = "- The [guides](guide) are about [choosing an algorithm](guide::algorithms), limits\n  \
           [per plan and tenant](guide::plans), [testing](guide::testing), and\n  \
           [production](guide::production)."
)]
#![cfg_attr(
    all(feature = "redis", feature = "axum", feature = "actix"),
    doc = "  [Migrating](guide::migrating) says what is what for who comes from another limiter."
)]
//!
//! # Features
//!
//! | feature | default | what it adds |
//! | --- | --- | --- |
//! | `redis` | yes | counts shared by a fleet, in Redis or Valkey |
//! | `axum`, `actix`, `tonic` | | [`Rejection`] as what these refuse with, middleware, clients as keys: `web` |
//! | `tower` | | the layer by itself, for hyper and other servers of tower services |
//! | `metrics` | | what is decided, as metrics; see below |
//! | `uuid` | | `uuid::Uuid` as a [`Key`] |
//!
//! # Seeing what happens
//!
//! Each checked call is reported once, when it is answered: not the questions that it asks while it
//! waits, nor calls that gave up, nor `peek`, `refund` and `reset`. Keys may be personal, and are
//! many: they are in none of this. What events call `key` is a hash of it under a secret of the process,
//! by which refusals of one key are seen to be of one.
//!
//! | `tracing` event | level | fields |
//! | --- | --- | --- |
//! | refused | `DEBUG` | `limit`, `key`, `retry_after`, `source` |
//! | refused, however long it waits: the cost is above the capacity | `INFO` | `limit`, `key`, `cost`, `capacity` |
//! | would be refused, by a [shadow](Limit::shadow) | `INFO` | as of the refusal |
//! | not decided: [`Rejection::Unavailable`], also of a shadow | `DEBUG` | `limit`, `error` |
//!
//! With feature `metrics`, these go to the recorder that the application has installed for the
//! `metrics` facade, best before the limiter is built: help texts and units are given then.
//!
//! | metric | kind | labels | |
//! | --- | --- | --- | --- |
//! | `ratelimit_decisions_total` | counter | `limit`, `outcome`, `source` | checked calls |
//! | `ratelimit_decision_duration_seconds` | histogram | `limit`, `source` | from the call of `check` to its answer, waiting included |
//! | `ratelimit_breaker_open` | gauge | `node` | 1 while a Redis server is not asked because it does not answer, else 0 |
//! | `ratelimit_keys` | gauge | | keys in all embedded stores of the process; those out of use are counted until they are reclaimed |
//!
//! - `limit` is the name of the limit; of several, of the one that spoke.
//! - `outcome` is `allowed`, `limited`, `cost_exceeds_capacity`, `unavailable`; of a shadow
//!   `shadow_allowed`, `shadow_limited` (also for a cost above the capacity), `unavailable`.
//! - `source` is who decided: `embedded`, `redis`, `cache` for a refusal of Redis that still holds,
//!   `lease` for a unit that was paid for in advance, `fallback` for what [`OnError`] says, `none`.

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

/// The code in the README compiles and runs.
#[cfg(all(doctest, feature = "redis", feature = "axum"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// Guides: what is more than one item's to say.
///
/// Where they lead to each other or show pictures, the files name files; here the same names mean pages
/// of this documentation, and pictures within the page: of two definitions the first one counts.
#[cfg(all(any(doc, doctest), feature = "redis"))]
pub mod guide {
    #[doc = include_str!("../docs/pictures/inline.md")]
    #[doc = "[testing]: crate::guide::testing"]
    #[doc = "[plans]: crate::guide::plans"]
    #[doc = "[production]: crate::guide::production"]
    #[doc = ""]
    #[doc = include_str!("../docs/algorithms.md")]
    pub mod algorithms {}

    #[cfg(all(feature = "axum", feature = "actix"))]
    #[doc = "[algorithms]: crate::guide::algorithms"]
    #[doc = "[plans]: crate::guide::plans"]
    #[doc = "[production]: crate::guide::production"]
    #[doc = ""]
    #[doc = include_str!("../docs/migrating.md")]
    pub mod migrating {}

    #[doc = "[algorithms]: crate::guide::algorithms"]
    #[doc = "[production]: crate::guide::production"]
    #[doc = "[testing]: crate::guide::testing"]
    #[doc = ""]
    #[doc = include_str!("../docs/plans.md")]
    pub mod plans {}

    #[doc = include_str!("../docs/production.md")]
    pub mod production {}

    #[doc = "[production]: crate::guide::production"]
    #[doc = ""]
    #[doc = include_str!("../docs/testing.md")]
    pub mod testing {}
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
mod reply;
mod report;
mod sticky;
mod store;
mod waiting;
#[cfg(any(feature = "tower", feature = "actix"))]
pub mod web;

#[doc(hidden)]
#[path = "expansion/mod.rs"]
pub mod __private;

pub use ratelimit_macros::rate_limit;

pub use crate::check::{Check, Part};
pub use crate::clock::{Clock, VirtualClock};
pub use crate::key::{Key, KeyWriter};
pub use crate::limit::{Algorithm, Align, InvalidLimit, Limit, Name, OnError, Quota, Scope};
pub use crate::limiter::{Builder, RateLimiter, SetGlobalError, current, set_global};
pub use crate::reply::{
    Answer, BuildError, Decision, FromRejection, Rejection, Source, StoreError,
};
