//! What a server says about itself, its latency and its clock.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use redis::RedisResult;
use redis::aio::MultiplexedConnection;

use super::Diagnosis;
use crate::connection::Node;
use crate::text::brief;

/// The oldest version that the library supports.
const OLDEST: (u32, u32) = (6, 2);

/// The number of requests that are timed.
const REQUESTS: usize = 100;

/// The largest difference of the clocks in microseconds that is no finding.
const CLOCKS_DIFFER: i64 = 1_000_000;

/// The smallest step of a clock in microseconds that is a finding.
const CLOCK_STEP: i64 = 50_000;

/// The lines of `INFO`.
struct Info<'a> {
    address: &'a str,
    topology: &'a str,
    lines: HashMap<&'a str, &'a str>,
}

impl Info<'_> {
    /// Returns a value; empty without one.
    fn text(&self, name: &str) -> &str {
        self.lines.get(name).copied().unwrap_or_default()
    }

    fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }
}

/// Reads `INFO`: the version, and what can become of counts and rules.
pub(super) async fn check_server(
    diagnosis: &mut Diagnosis,
    node: &mut Node,
    topology: &str,
    has_rules: bool,
) {
    let address = &node.address;
    let info = match redis::cmd("INFO").query_async::<String>(&mut node.connection).await {
        Ok(info) => info,
        Err(error) => {
            let error = format!("{address}: version, eviction, replicas and persistence: {error}");
            return diagnosis.unchecked("server", &error, "+info");
        }
    };
    let lines = info.lines().filter_map(|line| line.split_once(':')).collect();
    let info = Info { address, topology, lines };
    check_version(diagnosis, &info);
    check_eviction(diagnosis, &info);
    check_replicas(diagnosis, &info);
    check_persistence(diagnosis, &info, has_rules);
}

fn check_version(diagnosis: &mut Diagnosis, info: &Info<'_>) {
    let address = info.address;
    let version = info.text("redis_version");
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    let known = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let product = match info.text("valkey_version") {
        "" => format!("Redis {version}"),
        valkey => format!("Valkey {valkey}"),
    };
    if known < OLDEST {
        diagnosis.fail(
            "server",
            format!("{address}: {product}"),
            "update it to Redis 6.2 or later",
        );
    } else if info.text("redis_mode") == "cluster" && info.topology != "cluster" {
        diagnosis.fail(
            "server",
            format!("{address}: {product}, a node of a cluster"),
            "begin the URL with redis+cluster://",
        );
    } else {
        diagnosis.ok("server", format!("{address}: {product}"));
    }
}

fn check_eviction(diagnosis: &mut Diagnosis, info: &Info<'_>) {
    let address = info.address;
    let (limit, policy) = (info.number("maxmemory"), info.text("maxmemory_policy"));
    let (used, evicted) = (info.number("used_memory"), info.number("evicted_keys"));
    let seen = format!("{address}: {used} of {limit} bytes, `{policy}`, {evicted} keys evicted");
    if limit == 0 {
        diagnosis.ok("eviction", format!("{address}: no `maxmemory`, so no key is evicted"));
    } else if policy != "noeviction" {
        let rules = if policy.starts_with("allkeys") { ", and the rules can be lost" } else { "" };
        let seen = format!("{seen}: a key that is evicted starts at zero{rules}");
        let advice =
            "CONFIG SET maxmemory-policy noeviction, or give the limiter a server of its own";
        if evicted > 0 {
            diagnosis.fail("eviction", seen, advice);
        } else {
            diagnosis.warn("eviction", seen, advice);
        }
    } else if used >= limit / 10 * 9 {
        diagnosis.warn(
            "eviction",
            seen,
            "raise `maxmemory`: when it is full, decisions fail with OOM",
        );
    } else {
        diagnosis.ok("eviction", seen);
    }
}

fn check_replicas(diagnosis: &mut Diagnosis, info: &Info<'_>) {
    let address = info.address;
    let replicas = info.number("connected_slaves");
    if info.text("role") == "slave" {
        let primary = format!("{}:{}", info.text("master_host"), info.text("master_port"));
        diagnosis.fail(
            "replicas",
            format!("{address}: a replica of {primary}, which rejects writes"),
            "write the address of the primary, or `redis+sentinel://` to follow it",
        );
    } else if replicas == 0 && !info.topology.is_empty() {
        diagnosis.warn(
            "replicas",
            format!("{address}: no replica, so nothing takes over when this server is lost"),
            "add a replica",
        );
    } else if replicas == 0 {
        diagnosis.ok(
            "replicas",
            format!("{address}: none; while the server is down, `on_error` decides"),
        );
    } else {
        diagnosis.ok(
            "replicas",
            format!("{address}: {replicas}; one that takes over can lack the last charges"),
        );
    }
}

fn check_persistence(diagnosis: &mut Diagnosis, info: &Info<'_>, has_rules: bool) {
    let address = info.address;
    let failed = ["rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status"];
    let failed = failed.into_iter().find(|name| info.text(name) == "err");
    match failed {
        Some(status) => diagnosis.fail(
            "persistence",
            format!("{address}: `{status}` is `err`, so the server can reject writes with MISCONF"),
            "read the log of the server, and make room on its disk",
        ),
        None if info.number("aof_enabled") == 1 => {
            diagnosis.ok("persistence", format!("{address}: an append-only file"));
        }
        None if has_rules => diagnosis.warn(
            "persistence",
            format!("{address}: no append-only file, so a restart can lose the rules"),
            "run `ratelimit save > rules.json` after each change, or CONFIG SET appendonly yes",
        ),
        None => diagnosis.ok(
            "persistence",
            format!("{address}: no append-only file; there are no rules to lose"),
        ),
    }
}

/// A request for the time of the server.
#[derive(Clone, Copy)]
pub(super) struct Sample {
    took: Duration,
    /// The time of the server minus that of this machine in the middle of the request, in microseconds.
    offset: i64,
}

async fn samples(connection: &mut MultiplexedConnection) -> RedisResult<Vec<Sample>> {
    let mut samples = Vec::new();
    for _ in 0..REQUESTS {
        // In this order, what passes between the two is a part of the request.
        let (sent, sent_at) = (Instant::now(), SystemTime::now());
        let (seconds, micros): (i64, i64) = redis::cmd("TIME").query_async(connection).await?;
        let took = sent.elapsed();
        let middle = (sent_at + took / 2).duration_since(SystemTime::UNIX_EPOCH);
        let middle = middle.unwrap_or_default().as_micros() as i64;
        samples.push(Sample { took, offset: seconds * 1_000_000 + micros - middle });
    }
    Ok(samples)
}

/// Takes the time of requests. They ask for the time, because a user of the library may do that.
pub(super) async fn check_latency(
    diagnosis: &mut Diagnosis,
    node: &mut Node,
    deadline: Duration,
) -> Vec<Sample> {
    match samples(&mut node.connection).await {
        Ok(samples) => {
            let durations = samples.iter().map(|sample| sample.took).collect();
            let what = format!("{}: a request", node.address);
            diagnosis.judge_times("latency", &what, durations, deadline);
            samples
        }
        Err(error) => {
            diagnosis.unchecked("latency", &format!("{}: {error}", node.address), "+time");
            Vec::new()
        }
    }
}

/// Compares the clock of the server with that of this machine, once more.
pub(super) async fn check_clock(
    diagnosis: &mut Diagnosis,
    node: &mut Node,
    mut samples_before: Vec<Sample>,
) {
    // Without the right, the check of the latency has said so.
    let Ok(samples) = samples(&mut node.connection).await else { return };
    samples_before.extend(samples);
    judge_clock(diagnosis, &node.address, &samples_before);
}

fn judge_clock(diagnosis: &mut Diagnosis, address: &str, samples: &[Sample]) {
    let Some(best) = samples.iter().min_by_key(|sample| sample.took) else { return };
    let half = |sample: &Sample| (sample.took / 2).as_micros() as i64;
    // The offset of a clock that is not stepped is in the bounds of each request.
    let least = samples.iter().map(|sample| sample.offset - half(sample)).max().unwrap_or(0);
    let most = samples.iter().map(|sample| sample.offset + half(sample)).min().unwrap_or(0);
    let ahead = if best.offset < 0 { "behind" } else { "ahead of" };
    let [offset, step] =
        [best.offset.unsigned_abs(), (least - most).unsigned_abs()].map(Duration::from_micros);
    let seen = format!(
        "{address}: {} {ahead} this machine, give or take {}",
        brief(offset),
        brief(best.took / 2)
    );
    if least - most > CLOCK_STEP {
        diagnosis.warn(
            "clock",
            format!("{address}: a clock was stepped by {} during this examination", brief(step)),
            "let the time service slew the clocks of both machines, and step them only at the start",
        );
    } else if best.offset.abs() - half(best) > CLOCKS_DIFFER {
        diagnosis.warn(
            "clock",
            seen,
            "set the clocks of both machines by NTP: rules end by the clock of each process, and counts by that of \
             the server",
        );
    } else {
        diagnosis.ok("clock", seen);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    fn clock(offsets: &[i64]) -> (Verdict, String) {
        let took = Duration::from_micros(200);
        let samples: Vec<_> = offsets.iter().map(|&offset| Sample { took, offset }).collect();
        let mut diagnosis = Diagnosis::default();
        judge_clock(&mut diagnosis, "redis", &samples);
        let finding = diagnosis.findings.remove(0);
        (finding.verdict, finding.seen)
    }

    #[test]
    fn a_clock_that_differs_or_is_stepped_is_a_finding() {
        assert_eq!(clock(&[900_000, 900_050]).0, Verdict::Ok);
        let (verdict, seen) = clock(&[-2_000_000]);
        assert!(verdict == Verdict::Warn && seen.contains("2000.0 ms behind"), "{seen}");
        let (verdict, seen) = clock(&[0, 50, 400_000]);
        assert!(verdict == Verdict::Warn && seen.contains("was stepped by 399.8 ms"), "{seen}");
    }
}
