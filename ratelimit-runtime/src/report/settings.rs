//! What the builder of a limiter sets about its reports: a function that listens to rejections, and whether events
//! contain keys.

use std::fmt;
use std::sync::Arc;

use tracing::{Level, enabled};

use crate::reply::Rejection;

/// The settings of a limiter for its reports.
#[derive(Clone, Default)]
pub(crate) struct ReportSettings {
    pub(crate) on_rejected: Option<RejectionHook>,
    /// Whether events contain the texts of keys.
    pub(crate) logs_keys: bool,
    /// The secret of the hashes of keys; `None`: a random one of the process.
    pub(crate) log_secret: Option<LogSecret>,
}

impl ReportSettings {
    /// Returns whether rejections are reported.
    #[inline]
    pub(crate) fn reports_rejections(&self) -> bool {
        self.on_rejected.is_some() || is_traced()
    }
}

/// Returns whether the event of a rejection is enabled.
#[inline]
pub(crate) fn is_traced() -> bool {
    enabled!(target: "ratelimit_runtime::report", Level::DEBUG)
}

/// Called with each rejected call.
pub(crate) type RejectionHook = Arc<dyn Fn(&RejectedCall<'_>) + Send + Sync>;

/// A secret for hashes in events, from the bytes that the application sets.
#[derive(Clone, Copy)]
pub(crate) struct LogSecret([u64; 2]);

impl LogSecret {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self([0, 1].map(|half| sip_hash([half, 0], bytes)))
    }

    pub(super) fn hash(self, text: &str) -> u64 {
        sip_hash(self.0, text.as_bytes())
    }
}

/// Hashes by `SipHash` 2-4, which is the same in all builds.
#[allow(deprecated, reason = "the other hashers of the standard library can change")]
fn sip_hash([one, other]: [u64; 2], bytes: &[u8]) -> u64 {
    use std::hash::{Hasher, SipHasher};

    let mut hasher = SipHasher::new_with_keys(one, other);
    hasher.write(bytes);
    hasher.finish()
}

/// A rejected call, for [`Builder::on_rejected`](crate::Builder::on_rejected).
#[derive(Clone, Copy)]
pub struct RejectedCall<'a> {
    pub(super) rejection: &'a Rejection,
    pub(super) key: &'a str,
    pub(super) is_shadow: bool,
}

impl<'a> RejectedCall<'a> {
    /// Returns the name of the limit that rejected the call.
    #[must_use]
    pub fn limit(&self) -> &'a str {
        self.rejection.name()
    }

    /// Returns the text of the key, as in Redis: `alice`, `(acme:7)`, `%` for the key `()`. A terminal
    /// can print it: see [`OwnedKey`](crate::OwnedKey). Clients can choose keys: escape the text for other
    /// destinations, such as HTML.
    #[must_use]
    pub fn key(&self) -> &'a str {
        self.key
    }

    /// Returns the rejection, with the decision.
    #[must_use]
    pub fn rejection(&self) -> &'a Rejection {
        self.rejection
    }

    /// Returns whether the limit is a [shadow](crate::Limit::shadow), which has admitted the call.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.is_shadow
    }
}

/// Shows the key: the application asked for it.
impl fmt::Debug for RejectedCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RejectedCall")
            .field("key", &self.key)
            .field("rejection", &self.rejection)
            .field("is_shadow", &self.is_shadow)
            .finish()
    }
}
