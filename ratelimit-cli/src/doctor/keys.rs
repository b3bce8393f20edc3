//! A sample of the keys under the prefix: the memory of each limit, and keys without a TTL.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::RedisResult;
use serde::Serialize;

use super::Diagnosis;
use crate::connection::Node;
use crate::text::duration;

/// The number of keys of a server, of any application, that a sample looks at: 40 pages.
const SCANNED: usize = PAGE * 40;
const PAGE: usize = 500;

/// The number of keys of a server that are measured.
const MEASURED: usize = 2_000;

/// The number of keys that are measured in one round trip.
const CHUNK: usize = 100;

/// The bytes of a key that `MEMORY USAGE` leaves out: its parts of the hash tables. See `docs/redis.md`.
const LEFT_OUT: u64 = 90;

/// The memory of the counts of a limit, estimated by a sample.
#[derive(Serialize)]
pub(crate) struct Memory {
    pub(super) limit: String,
    pub(super) keys: u64,
    pub(super) median_bytes: u64,
    pub(super) bytes: u64,
}

/// The keys that were measured on a server.
#[derive(Default)]
struct Sample {
    /// The number of keys that each measured key stands for.
    weight: f64,
    /// The keys, their bytes, and their TTLs in milliseconds, which are -1 without one.
    keys: Vec<(String, u64, i64)>,
}

pub(super) async fn check(diagnosis: &mut Diagnosis, nodes: &mut [Node], prefix: &str) {
    let mut samples = Vec::new();
    for node in nodes {
        match sample(node, prefix).await {
            Ok(sample) => samples.push(sample),
            Err(error) => {
                let error = format!("{}: {error}", node.address);
                return diagnosis.unchecked("memory", &error, "+scan +dbsize +memory|usage +pttl");
            }
        }
    }
    let mut limits: BTreeMap<String, (f64, Vec<u64>)> = BTreeMap::new();
    for Sample { weight, keys } in &samples {
        for (key, bytes, _) in keys {
            let (all, measured) = limits.entry(limit_of(key, prefix)).or_default();
            *all += weight;
            measured.push(bytes + LEFT_OUT);
        }
    }
    let memory = |(limit, (keys, mut measured)): (String, (f64, Vec<u64>))| {
        measured.sort_unstable();
        let mean = measured.iter().sum::<u64>() as f64 / measured.len() as f64;
        let (median_bytes, bytes) = (measured[measured.len() / 2], (keys * mean).round() as u64);
        Memory { limit, keys: keys.round() as u64, median_bytes, bytes }
    };
    diagnosis.memory = limits.into_iter().map(memory).collect();
    let total: u64 = diagnosis.memory.iter().map(|memory| memory.bytes).sum();
    let measured: usize = samples.iter().map(|sample| sample.keys.len()).sum();
    diagnosis.ok(
        "memory",
        format!("counts take about {} KiB; {measured} were measured", total.div_ceil(1024)),
    );

    let keys = || samples.iter().flat_map(|sample| &sample.keys);
    let without: Vec<_> = keys().filter(|(_, _, ttl)| *ttl == -1).collect();
    match without.first() {
        None => {
            let last = keys().map(|(_, _, ttl)| ttl.unsigned_abs()).max();
            let last = last.map_or_else(String::new, |last| {
                format!(", the last one in {}", duration(Duration::from_millis(last)))
            });
            diagnosis.ok("ttl", format!("each measured key expires{last}"));
        }
        Some((key, ..)) => diagnosis.fail(
            "ttl",
            format!("{} of {measured} measured keys never expire, such as `{key}`", without.len()),
            "DEL them, or `ratelimit reset` them: another program has run PERSIST, or wrote them",
        ),
    }
}

/// Measures keys with counts: a part of them, if the server has many keys.
async fn sample(node: &mut Node, prefix: &str) -> RedisResult<Sample> {
    let connection = &mut node.connection;
    let start = format!("{prefix}:");
    let (mut cursor, mut scanned, mut names) = (0_u64, 0, Vec::new());
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("COUNT").arg(PAGE);
        let (next, page): (u64, Vec<Vec<u8>>) = scan.query_async(connection).await?;
        scanned += page.len();
        names.extend(page.into_iter().filter(|name| is_count(name, start.as_bytes())));
        cursor = next;
        if cursor == 0 || scanned >= SCANNED {
            break;
        }
    }
    let total = match cursor {
        0 => scanned as f64,
        _ => redis::cmd("DBSIZE").query_async::<u64>(connection).await? as f64,
    };
    // A scan can return a key twice.
    names.sort_unstable();
    names.dedup();
    let found = names.len() as f64;
    let step = names.len().div_ceil(MEASURED).max(1);
    let names: Vec<_> = names.into_iter().step_by(step).collect();
    let mut keys = Vec::new();
    for names in names.chunks(CHUNK) {
        let mut measure = redis::pipe();
        for name in names {
            measure.cmd("MEMORY").arg("USAGE").arg(name).cmd("PTTL").arg(name);
        }
        let replies: Vec<Option<i64>> = measure.query_async(connection).await?;
        for (name, reply) in names.iter().zip(replies.chunks(2)) {
            // One that has expired since takes no memory.
            if let [Some(bytes), Some(ttl)] = reply
                && *ttl != -2
            {
                keys.push((String::from_utf8_lossy(name).into_owned(), *bytes as u64, *ttl));
            }
        }
    }
    let all = found * total / (scanned.max(1) as f64);
    Ok(Sample { weight: all / keys.len().max(1) as f64, keys })
}

/// Returns whether a name is of a count, and not of the rules or of a probe.
fn is_count(name: &[u8], start: &[u8]) -> bool {
    let Some(rest) = name.strip_prefix(start) else { return false };
    !rest.starts_with(b"{rules}") && !rest.starts_with(b"probe")
}

/// Returns the limit of a key, as `find` prints it: `login (sliding, 15m)`.
fn limit_of(key: &str, prefix: &str) -> String {
    let rest = key.strip_prefix(prefix).unwrap_or(key).trim_start_matches(':');
    let name = rest.split_once('{').map_or_else(|| rest.trim_end_matches('%'), |(name, _)| name);
    match name.splitn(3, ':').collect::<Vec<_>>()[..] {
        [algorithm, period, limit] => format!("{limit} ({algorithm}, {period})"),
        _ => name.to_owned(),
    }
}
