//! The names that most of these tests use.

pub(crate) use std::collections::BTreeMap;
pub(crate) use std::sync::{Arc, Mutex};
pub(crate) use std::time::Duration;

pub(crate) use ratelimit_runtime::{
    Builder, Limit, OnError, Part, RateLimiter, Rejection, Rule, Scope, rate_limit,
};
pub(crate) use support::cluster::Cluster;
pub(crate) use support::limits::{HOUR, MINUTE, SECOND, ruled};
pub(crate) use support::recorder::GaugeRecorder;
pub(crate) use support::server::Server;
pub(crate) use support::wait::wait_until;

pub(crate) use crate::{KEY, TestLimiter, calls, events_of, log_of, logged_keys_of, raw_events_of};
