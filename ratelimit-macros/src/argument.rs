//! The arguments of the attribute. Parsing, suggestions and messages derive from this table, and
//! `completeness.rs` compares the lists elsewhere with it.

use std::fmt;

use crate::words::{Word, word_enum};

word_enum! {
    /// The name of an argument.
    ArgumentName {
        Period = "period" | "window" | "interval" | "per" | "seconds" | "duration" | "limit_refresh_period",
        Threshold = "threshold" | "max" | "requests" | "count" | "calls" | "quota"
            | "limit_for_period",
        Algo = "algo" | "algorithm" | "strategy",
        Burst = "burst" | "capacity" | "burst_size",
        Align = "align" | "timezone",
        InFlight = "in_flight" | "concurrent" | "concurrency" | "max_concurrent" | "max_concurrency"
            | "max_in_flight" | "parallel" | "slots",
        Hold = "hold" | "hold_for" | "lease_time" | "max_hold",
        Key = "key" | "by" | "cache_key",
        Cost = "cost" | "weight" | "units" | "permits",
        Name = "name",
        Limit = "limit",
        Limiter = "limiter",
        Scope = "scope" | "rate_type",
        OnError = "on_error",
        Shadow = "shadow" | "dry_run",
        Hidden = "hidden" | "hide",
        Wait = "wait" | "retry" | "timeout" | "timeout_duration" | "max_wait",
        Lease = "lease" | "prefetch",
        OnLimited = "on_limited" | "fallback" | "fallback_method" | "block_handler" | "on_rejected",
        Settle = "settle" | "actual_cost" | "real_cost",
        CountIf = "count_if" | "only_if" | "charge_if",
        Permit = "permit",
        Close = "close" | "close_for" | "retry_after" | "backoff",
        CloseAtMost = "close_at_most" | "max_close" | "max_retry_after" | "max_backoff",
        Crate = "crate",
    }
}

/// Where an argument can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Describes one limit: in the `limit(…)` groups, if the attribute has any.
    OneLimit,
    /// In a group, or beside the groups for all that do not have their own.
    Anywhere,
    /// Beside the groups, never in one.
    Attribute,
    /// Only in an attribute without groups.
    WithoutGroups,
}

impl ArgumentName {
    pub(crate) fn place(self) -> Place {
        match self {
            Self::Period
            | Self::Threshold
            | Self::Algo
            | Self::Burst
            | Self::Align
            | Self::InFlight
            | Self::Hold
            | Self::Limit
            | Self::Settle
            | Self::Permit
            | Self::Close
            | Self::CloseAtMost => Place::OneLimit,
            Self::Key | Self::Cost | Self::Name | Self::Hidden | Self::CountIf => Place::Anywhere,
            Self::Limiter
            | Self::Scope
            | Self::OnError
            | Self::Shadow
            | Self::Wait
            | Self::OnLimited
            | Self::Crate => Place::Attribute,
            Self::Lease => Place::WithoutGroups,
        }
    }

    /// The argument with a value, to show in messages.
    pub(crate) fn example(self) -> &'static str {
        match self {
            Self::Period => "period = 30",
            Self::Threshold => "threshold = 100",
            Self::Algo => "algo = \"fixed\"",
            Self::Burst => "burst = 200",
            Self::Align => "align = \"utc\"",
            Self::InFlight => "in_flight = 2",
            Self::Hold => "hold = \"30s\"",
            Self::Key => "key = user_id",
            Self::Cost => "cost = 5",
            Self::Name => "name = \"login\"",
            Self::Limit => "limit = LOGIN",
            Self::Limiter => "limiter = state.limiter",
            Self::Scope => "scope = \"process\"",
            Self::OnError => "on_error = \"deny\"",
            Self::Shadow => "shadow = true",
            Self::Hidden => "hidden = true",
            Self::Wait => "wait = \"5s\"",
            Self::Lease => "lease = 50",
            Self::OnLimited => "on_limited = |rejection| Err(rejection)",
            Self::Settle => "settle = |result| result.as_ref().map_or(0, |answer| answer.tokens)",
            Self::CountIf => "count_if = Result::is_err",
            Self::Permit => "permit = tokens",
            Self::Close => "close = |result| result.as_ref().err().and_then(Error::retry_after)",
            Self::CloseAtMost => "close_at_most = \"10m\"",
            Self::Crate => "crate = my_crate::limits",
        }
    }

    /// The argument that is written as `word`.
    pub(crate) fn find(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|name| name.as_str() == word)
    }
}

impl Place {
    pub(crate) fn is_in_groups(self) -> bool {
        match self {
            Self::OneLimit | Self::Anywhere => true,
            Self::Attribute | Self::WithoutGroups => false,
        }
    }
}

impl fmt::Display for ArgumentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
