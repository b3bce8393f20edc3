//! The rules that a fleet shares: a hash with a version beside the counts, and a list of its changes. Both are
//! configuration, so they have no TTL. What the processes announce about themselves has one.
//!
//! Whoever can write into Redis can write anything there, so each value is read by a script that looks at its size
//! first. What one process cannot read is left out and hides nothing else.
//!
//! The keys of a limit are looked for server by server.

use std::sync::Arc;

use redis::{Cmd, FromRedisValue, Value};

use super::script_call::unexpected;
use crate::reply::StoreError;
use crate::store::redis::network::failure::about;
use crate::store::redis::scripts::program::several;
use crate::store::redis::{Redis, Topology};
use crate::store::{MAX_ANNOUNCEMENT, MAX_PROCESS_ID, ScanPosition, StoredRules};

/// The most bytes of rules, as of a file.
const MAX_RULES: usize = 16 << 20;

/// The most bytes of a version.
const MAX_VERSION: usize = 128;

/// The number of changes that `lua/rules.lua` keeps.
const MOST_CHANGES: usize = 1_000;

/// The most bytes of a change, and of the changes that are returned.
const MAX_CHANGE: usize = 1 << 20;
const MAX_CHANGES: usize = 16 << 20;

/// The TTL of an announcement.
const ANNOUNCED_MS: u64 = 30_000;

/// How long Redis keeps that a process reports about a version of the rules.
const CLAIMED_MS: u64 = 3_600_000;

/// The number of keys that a `SCAN` looks at.
const LOOKED_AT: u32 = 1_000;

/// The most processes that are returned.
const MOST_PROCESSES: usize = 10_000;

impl Redis {
    /// Returns the rules that all processes share, unless they have the version that the caller knows.
    pub(crate) async fn read_rules(&self, known: &str) -> Result<Option<StoredRules>, StoreError> {
        let key = self.rules_key("");
        let read = async |command| {
            let mut eval = call(command, "read_rules", &[&key]);
            eval.arg(known).arg(MAX_VERSION).arg(MAX_RULES);
            self.send_for_rules(&eval, &key).await
        };
        // A service may read the rules and not write them, and `EVAL` needs the right to write.
        let reply = match read("EVAL_RO").await {
            // Redis 6.2.
            Err(StoreError::Server { message, .. }) if message.contains("unknown command") => {
                read("EVAL").await
            }
            reply => reply,
        };
        let mut fields = decode::<Vec<String>>(reply?)?.into_iter();
        let version = fields.next().ok_or_else(unexpected)?;
        let Some(rules) = fields.next() else { return Ok(None) };
        if version.is_empty() && !rules.is_empty() {
            let message =
                "the hash of the rules has no field `version`: write rules by `share_rules`";
            return Err(StoreError::Server { code: "RULES".into(), message: message.into() });
        }
        Ok(Some(StoredRules { version, rules }))
    }

    /// Replaces the rules that all processes share, if they have the version `replaces`. Returns the version that they
    /// had. `change` is the entry in the list of changes.
    pub(crate) async fn write_rules(
        &self,
        replaces: &str,
        StoredRules { version, rules }: &StoredRules,
        change: &str,
    ) -> Result<String, StoreError> {
        if rules.len() > MAX_RULES {
            let message = format!("the rules are too large: over {MAX_RULES} bytes");
            return Err(StoreError::Server { code: "RULES".into(), message: message.into() });
        }
        let (key, changes) = (self.rules_key(""), self.rules_key(":changes"));
        let now = self.clock.sent().map_or_else(String::new, |now| now.to_string());
        let mut eval = call("EVAL", "rules", &[&key, &changes]);
        eval.arg(replaces).arg(version).arg(rules).arg(change).arg(now);
        decode(self.send_for_rules(&eval, &key).await?)
    }

    /// Returns the last changes of the rules, the newest first: each its time in microseconds, and its text.
    pub(crate) async fn rule_changes(&self, most: usize) -> Result<Vec<(u64, String)>, StoreError> {
        let key = self.rules_key(":changes");
        let mut eval = call("EVAL", "changes", &[&key]);
        eval.arg(most.min(MOST_CHANGES)).arg(MAX_CHANGE).arg(MAX_CHANGES);
        let entries = texts(self.send_for_rules(&eval, &key).await?)?;
        let entries = entries.iter().filter_map(|entry| {
            let (time, change) = entry.split_once(' ')?;
            Some((time.parse().ok()?, change.to_owned()))
        });
        Ok(entries.collect())
    }

    /// Announces this process for half a minute.
    pub(crate) async fn announce(&self, process: &str, text: &str) -> Result<(), StoreError> {
        let (key, processes) = (self.process_key(process), self.rules_key(":processes"));
        let mut eval = call("EVAL", "announce", &[&key, &processes]);
        eval.arg(process).arg(text).arg(ANNOUNCED_MS);
        let now = self.clock.sent().map(|now| (now / 1_000).to_string());
        eval.arg(now.unwrap_or_default());
        self.send_for_rules(&eval, &key).await.map(drop)
    }

    /// Returns the ids of the processes that announce something.
    pub(crate) async fn processes(&self) -> Result<Vec<String>, StoreError> {
        let key = self.rules_key(":processes");
        let mut eval = call("EVAL", "processes", &[&key]);
        eval.arg(MOST_PROCESSES).arg(MAX_PROCESS_ID);
        texts(self.send_for_rules(&eval, &key).await?)
    }

    /// Returns what these processes announce.
    pub(crate) async fn announcements(
        &self,
        processes: &[String],
    ) -> Result<Vec<String>, StoreError> {
        let keys: Vec<_> = processes.iter().map(|process| self.process_key(process)).collect();
        let Some(first) = keys.first() else { return Ok(Vec::new()) };
        let mut eval = call("EVAL", "announced", &keys.iter().collect::<Vec<_>>());
        eval.arg(MAX_ANNOUNCEMENT);
        texts(self.send_for_rules(&eval, first).await?)
    }

    /// Returns whether this process is the first that reports about the rules of a version.
    pub(crate) async fn claim_report(
        &self,
        version: &str,
        process: &str,
    ) -> Result<bool, StoreError> {
        let key = self.rules_key(&format!(":report:{version}"));
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(process).arg("NX").arg("PX").arg(CLAIMED_MS);
        Ok(self.send_for_rules(&set, &key).await? != Value::Nil)
    }

    /// Returns some names of counts that begin with `start`, and where to go on.
    pub(crate) async fn scan(
        &self,
        start: &[u8],
        ScanPosition { server, cursor }: ScanPosition,
    ) -> Result<(Vec<Vec<u8>>, Option<ScanPosition>), StoreError> {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(pattern(start)).arg("COUNT").arg(LOOKED_AT);
        let by = self.begin()?;
        let nodes = match &self.topology {
            Topology::One(node) => vec![Arc::clone(node)],
            Topology::Cluster(cluster) => cluster.primaries(by).await?,
        };
        let Some(node) = nodes.get(server) else { return Ok((Vec::new(), None)) };
        let reply = node.send(&scan, false, by).await?;
        let (cursor, names) = decode(reply)?;
        let next = match cursor {
            0 if server + 1 == nodes.len() => None,
            0 => Some(ScanPosition { server: server + 1, cursor: 0 }),
            cursor => Some(ScanPosition { server, cursor }),
        };
        Ok((names, next))
    }

    /// Returns a key of the rules. All of them share a hash slot, and none is a key of a count.
    fn rules_key(&self, suffix: &str) -> String {
        format!("{}:{{rules}}{suffix}", self.prefix)
    }

    fn process_key(&self, process: &str) -> String {
        self.rules_key(&format!(":process:{process}"))
    }

    async fn send_for_rules(&self, command: &Cmd, key: &str) -> Result<Value, StoreError> {
        let reply = self.send(command, key.as_bytes(), true, self.begin()?).await;
        reply.map_err(|failure| about(failure.into(), &[key.as_bytes()]))
    }
}

/// Begins the call of a script of `lua/` by its name. The server receives the script without its comments.
fn call(command: &str, script: &str, keys: &[&String]) -> Cmd {
    redis::cmd(command).arg(several(script)).arg(keys.len()).arg(keys).take()
}

fn decode<T: FromRedisValue>(reply: Value) -> Result<T, StoreError> {
    redis::from_redis_value(reply).map_err(|_| unexpected())
}

/// Returns the texts of a reply, without those that are not UTF-8.
fn texts(reply: Value) -> Result<Vec<String>, StoreError> {
    let texts: Vec<Vec<u8>> = decode(reply)?;
    Ok(texts.into_iter().filter_map(|text| String::from_utf8(text).ok()).collect())
}

/// Returns the pattern of the names that begin with `start`.
fn pattern(start: &[u8]) -> Vec<u8> {
    let escaped = start.iter().flat_map(|byte| {
        let escape = b"*?[]\\^".contains(byte).then_some(b'\\');
        escape.into_iter().chain([*byte])
    });
    escaped.chain([b'*']).collect()
}
