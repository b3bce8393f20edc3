//! The command `doctor`: examines a Redis and the fleet on it, and says what to do about each finding.
//!
//! It writes one key of its own, `PREFIX:probe:doctor`, and the count of a limit `doctor`; both have a TTL of seconds.

mod keys;
mod node;
mod rights;

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::time::{Duration, Instant};

use ratelimit_runtime::{AnnouncedProcess, Limit, RateLimiter, Rejection, SharedRules, StoreError};
use serde::Serialize;

use self::keys::Memory;
use crate::Context;
use crate::connection::Redis;
use crate::fleet::{self, identity};
use crate::text::{BAD, DOUBTFUL, GOOD, Report, Text, brief, causes, quantiles};

/// The deadline of a limiter unless one is set, as in the library.
const DEFAULT_DEADLINE: Duration = Duration::from_millis(100);

/// The number of decisions that are timed.
const DECISIONS: usize = 100;

/// The number of keys of each limit whose values are read.
const VALUES: usize = 5;

/// The findings, in the order of the checks.
#[derive(Default, Serialize)]
pub(crate) struct Diagnosis {
    findings: Vec<Finding>,
    memory: Vec<Memory>,
}

#[derive(Serialize)]
struct Finding {
    check: &'static str,
    verdict: Verdict,
    seen: String,
    advice: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Warn,
    Fail,
}

impl Diagnosis {
    fn ok(&mut self, check: &'static str, seen: impl Into<String>) {
        let seen = seen.into();
        self.findings.push(Finding { check, verdict: Verdict::Ok, seen, advice: None });
    }

    fn warn(&mut self, check: &'static str, seen: impl Into<String>, advice: impl Into<String>) {
        let (seen, advice) = (seen.into(), Some(advice.into()));
        self.findings.push(Finding { check, verdict: Verdict::Warn, seen, advice });
    }

    fn fail(&mut self, check: &'static str, seen: impl Into<String>, advice: impl Into<String>) {
        let (seen, advice) = (seen.into(), Some(advice.into()));
        self.findings.push(Finding { check, verdict: Verdict::Fail, seen, advice });
    }

    /// Warns of a check that could not be made.
    fn unchecked(&mut self, check: &'static str, error: &dyn fmt::Display, rights: &str) {
        let advice = format!("run this as a user with the rights {rights}");
        self.warn(check, format!("not checked: {error}"), advice);
    }
}

impl Report for Diagnosis {
    fn write(&self, text: &mut Text) -> fmt::Result {
        for Finding { check, verdict, seen, advice } in &self.findings {
            let (style, word) = match verdict {
                Verdict::Ok => (GOOD, "ok  "),
                Verdict::Warn => (DOUBTFUL, "warn"),
                Verdict::Fail => (BAD, "fail"),
            };
            text.styled(style, word);
            writeln!(text, "  {check:11}  {seen}")?;
            if let Some(advice) = advice {
                writeln!(text, "                   do: {advice}")?;
            }
        }
        for Memory { limit, keys, median_bytes, bytes } in &self.memory {
            let kib = bytes.div_ceil(1024);
            writeln!(text, "memory of {limit}: {keys} keys of {median_bytes} bytes, {kib} KiB")?;
        }
        match self.findings.iter().filter(|finding| finding.verdict != Verdict::Ok).count() {
            0 => writeln!(text, "nothing to do"),
            1 => writeln!(text, "1 finding"),
            findings => writeln!(text, "{findings} findings"),
        }
    }

    fn has_findings(&self) -> bool {
        self.findings.iter().any(|finding| finding.verdict != Verdict::Ok)
    }
}

/// Examines the Redis of a context. Errors are findings.
pub(crate) async fn examine(context: &Context) -> anyhow::Result<Diagnosis> {
    let mut diagnosis = Diagnosis::default();
    let redis = match Redis::new(context) {
        Ok(redis) => redis,
        Err(error) => {
            diagnosis.fail("url", causes(&error), "correct what the error names");
            return Ok(diagnosis);
        }
    };
    let limiter = context.builder()?.build()?;
    let parts = redis.parts();
    let topology = match parts.topology {
        "cluster" => "a cluster",
        "sentinel" => "the primary of Sentinels",
        _ => "one server",
    };
    let tls = if parts.is_encrypted() { "with TLS" } else { "without TLS" };
    diagnosis.ok("url", format!("{topology}, {tls}, keys begin with `{}:`", context.prefix));
    let mut nodes = match redis.nodes().await {
        Ok(nodes) => nodes,
        Err(error) => {
            diagnosis.blame_connection(&error, limiter.ping().await.err().as_ref());
            return Ok(diagnosis);
        }
    };
    let addresses: Vec<_> = nodes.iter().map(|node| &*node.address).collect();
    diagnosis.ok("connection", format!("connected to {}", addresses.join(", ")));

    let (fleet, shared) =
        (limiter.operator().fleet().await, limiter.operator().shared_rules().await);
    let has_rules = shared.as_ref().is_ok_and(|shared| !shared.rules.is_empty());
    let deadline = context.settings.deadline.unwrap_or(DEFAULT_DEADLINE);
    let mut clocks = Vec::new();
    for node in &mut nodes {
        rights::check(&mut diagnosis, node, context, parts, fleet.as_ref().ok()).await;
        node::check_server(&mut diagnosis, node, parts.topology, has_rules).await;
        clocks.push(node::check_latency(&mut diagnosis, node, deadline).await);
    }
    diagnosis.check_decisions(&limiter, deadline).await;
    keys::check(&mut diagnosis, &mut nodes, &context.prefix).await;
    diagnosis.check_values(&limiter).await;
    diagnosis.check_fleet(context, fleet, shared);
    // Last, so that a clock that was stepped meanwhile is seen.
    for (node, samples) in nodes.iter_mut().zip(clocks) {
        node::check_clock(&mut diagnosis, node, samples).await;
    }
    Ok(diagnosis)
}

impl Diagnosis {
    /// Adds the error of a connection. The library can connect where this command cannot: with another name of the
    /// servers in their certificates, for example.
    fn blame_connection(&mut self, error: &anyhow::Error, by_library: Option<&StoreError>) {
        let seen = causes(error);
        match by_library {
            None => self.warn(
                "connection",
                format!("the library connects, and this command does not: {seen}"),
                "read `ratelimit list`; the other checks were left out",
            ),
            Some(StoreError::Server { .. }) => self.fail(
                "connection",
                seen,
                "correct the user and the password of the URL, or of RATELIMIT_PASSWORD_FILE",
            ),
            Some(_) => self.fail(
                "connection",
                seen,
                "start the server, or correct the hosts and ports of the URL; with TLS, the files \
                 RATELIMIT_ROOT_CERTIFICATES, RATELIMIT_CLIENT_CERTIFICATE and RATELIMIT_CLIENT_KEY",
            ),
        }
    }

    /// Makes decisions by the library, with a limit of its own.
    async fn check_decisions(&mut self, limiter: &RateLimiter, deadline: Duration) {
        let limit = Limit::sliding("doctor", 1_000_000, Duration::from_secs(1));
        let made = async {
            limiter.ping().await.map_err(|error| error.to_string())?;
            let (key, mut durations) = (std::process::id(), Vec::new());
            for _ in 0..DECISIONS {
                let started = Instant::now();
                let checked = limiter.check(&limit, key, 1).await;
                checked.map_err(|rejection: Rejection| rejection.to_string())?;
                durations.push(started.elapsed());
            }
            limiter.reset(&limit, key).await.map_err(|error| error.to_string())?;
            Ok::<_, String>(durations)
        };
        match made.await {
            Ok(durations) => self.judge_times("decision", "a decision", durations, deadline),
            Err(error) => {
                self.fail("decision", error, "do what the error says, and the findings above");
            }
        }
    }

    /// Compares durations with the deadline of a decision.
    fn judge_times(
        &mut self,
        check: &'static str,
        what: &str,
        durations: Vec<Duration>,
        deadline: Duration,
    ) {
        let (median, p99) = quantiles(durations);
        let seen = format!("{what} takes {} (median), {} (p99)", brief(median), brief(p99));
        let advice = format!(
            "run the services nearer to Redis, look at its SLOWLOG and its load, or raise the deadline of {deadline:?} \
             (RATELIMIT_DEADLINE)"
        );
        if median >= deadline {
            self.fail(check, seen, advice);
        } else if p99 >= deadline / 2 {
            self.warn(check, seen, advice);
        } else {
            self.ok(check, seen);
        }
    }

    /// Reads values of each announced limit: the library knows the versions of its states.
    async fn check_values(&mut self, limiter: &RateLimiter) {
        let Ok(limits) = fleet::limits(limiter).await else { return };
        let (mut read, mut errors) = (0, Vec::new());
        for announced in &limits {
            let Ok(page) = limiter.operator().keys(&announced.limit, None).await else { return };
            for key in page.keys.iter().take(VALUES) {
                match limiter.operator().usage(&announced.limit, key).await {
                    Ok(_) => read += 1,
                    Err(error) => errors.push(error.to_string()),
                }
            }
        }
        match errors.first() {
            None => self.ok("values", format!("{read} values of announced limits are readable")),
            Some(error) => self.fail(
                "values",
                format!("{} of {} values are not readable: {error}", errors.len(), errors.len() + read),
                "delete these keys, or give the services a `key_prefix` of their own; while two releases run, finish \
                 the deployment",
            ),
        }
    }

    /// Compares the processes of the fleet with the rules in Redis, and with each other.
    fn check_fleet(
        &mut self,
        context: &Context,
        fleet: Result<Vec<AnnouncedProcess>, StoreError>,
        shared: Result<SharedRules, StoreError>,
    ) {
        let (fleet, shared) = match (fleet, shared) {
            (Ok(fleet), Ok(shared)) => (fleet, shared),
            (Err(error), _) | (_, Err(error)) => {
                return self.unchecked("fleet", &error, "of a tool; see docs/redis.md");
            }
        };
        if fleet.is_empty() {
            return self.ok(
                "fleet",
                format!(
                    "no process has announced itself under `{}`: only those with `Rules::redis()` do",
                    context.prefix
                ),
            );
        }
        let behind = fleet.iter().filter(|process| process.rules != shared.version());
        let behind: Vec<_> = behind.map(|process| &*process.id).collect();
        let of = format!("{} of {} processes", behind.len(), fleet.len());
        if behind.is_empty() {
            let rules = shared.rules.iter().count();
            self.ok("fleet", format!("{} processes obey {rules} rules", fleet.len()));
        } else if shared.version().is_empty() {
            self.fail(
                "fleet",
                format!("Redis has lost the rules that {of} obey: {}", behind.join(", ")),
                "`ratelimit restore` a file of `save`, before a process starts without them",
            );
        } else {
            self.warn(
                "fleet",
                format!("{of} obey older rules: {}", behind.join(", ")),
                "run this again in 30 s, when ended processes are gone; then look for `ERROR` events of these, or \
                 restart them",
            );
        }
        match differing_limit(&fleet) {
            None => self.ok("releases", "all processes announce the same amounts"),
            Some(seen) => self.warn(
                "releases",
                seen,
                "finish the deployment: each process decides by its own amounts",
            ),
        }
    }
}

/// Returns a limit for which two processes have announced other amounts.
fn differing_limit(fleet: &[AnnouncedProcess]) -> Option<String> {
    let mut known = BTreeMap::new();
    for process in fleet {
        let mut own: BTreeMap<_, Vec<String>> = BTreeMap::new();
        for announced in process.limits.iter().filter(|announced| !announced.is_computed) {
            let limit = &announced.limit;
            own.entry(identity(limit)).or_default().push(format!("{limit:?}"));
        }
        for (identity, mut amounts) in own {
            amounts.sort();
            amounts.dedup();
            let (other, other_amounts) =
                known.entry(identity).or_insert_with(|| (&process.id, amounts.clone()));
            if *other_amounts != amounts {
                let [one, two] = [&*other_amounts, &amounts].map(|amounts| amounts.join(" and "));
                return Some(format!("`{other}` has {one}, and `{}` has {two}", process.id));
            }
        }
    }
    None
}
