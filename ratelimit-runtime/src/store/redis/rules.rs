//! The rules that a fleet shares: a hash with a version beside the counts, and a list of its changes. Both are
//! configuration, so they have no TTL. What the processes announce about themselves has one.

use redis::{Cmd, Value};
use tokio::time::Instant;

use super::{Redis, unexpected};
use crate::reply::StoreError;
use crate::store::{Announcement, NewRules, RuleStore, ScanPosition, StoredRules};

/// Replaces the rules.
const SCRIPT: &str = include_str!("../../../lua/rules.lua");

/// The number of changes that `lua/rules.lua` keeps.
const MOST_CHANGES: usize = 1_000;

/// Announces a process.
const ANNOUNCE: &str = include_str!("../../../lua/announce.lua");

/// The TTL of an announcement.
const ANNOUNCED_MS: u64 = 30_000;

/// The most processes that are returned.
const MOST_PROCESSES: i64 = 10_000;

impl RuleStore for Redis {
    async fn read_rules(&self, known: &str) -> Result<Option<StoredRules>, StoreError> {
        let key = self.rules_key("");
        let mut get = Cmd::new();
        get.arg("HGET").arg(&key).arg("version");
        let version = self.send_for_rules(&get, &key).await?;
        if text(version).ok_or_else(unexpected)? == known {
            return Ok(None);
        }
        let mut get = Cmd::new();
        get.arg("HMGET").arg(&key).arg("version").arg("rules");
        let Value::Array(fields) = self.send_for_rules(&get, &key).await? else {
            return Err(unexpected());
        };
        let mut fields = fields.into_iter().map(text);
        let (Some(Some(version)), Some(Some(rules))) = (fields.next(), fields.next()) else {
            return Err(unexpected());
        };
        if version.is_empty() && !rules.is_empty() {
            let message =
                "the hash of the rules has no field `version`: write rules by `share_rules`";
            return Err(StoreError::Server { code: "RULES".into(), message: message.into() });
        }
        Ok(Some(StoredRules { version, rules }))
    }

    async fn write_rules(&self, new: NewRules) -> Result<String, StoreError> {
        let NewRules { replaces, version, rules, change } = new;
        let (key, changes) = (self.rules_key(""), self.rules_key(":changes"));
        let now = self.servers.clock.sent().map_or_else(String::new, |now| now.to_string());
        let mut eval = Cmd::new();
        eval.arg("EVAL").arg(SCRIPT).arg(2).arg(&key).arg(&changes);
        eval.arg(replaces).arg(version).arg(rules).arg(change).arg(now);
        text(self.send_for_rules(&eval, &key).await?).ok_or_else(unexpected)
    }

    async fn rule_changes(&self, most: usize) -> Result<Vec<(u64, String)>, StoreError> {
        let key = self.rules_key(":changes");
        let mut range = Cmd::new();
        range.arg("LRANGE").arg(&key).arg(0).arg(most.min(MOST_CHANGES) as i64 - 1);
        if most == 0 {
            return Ok(Vec::new());
        }
        let Value::Array(entries) = self.send_for_rules(&range, &key).await? else {
            return Err(unexpected());
        };
        let entries = entries.into_iter().map(|entry| {
            let entry = text(entry)?;
            let (time, change) = entry.split_once(' ')?;
            Some((time.parse().ok()?, change.to_owned()))
        });
        entries.map(|entry| entry.ok_or_else(unexpected)).collect()
    }

    async fn announce(&self, announcement: Announcement) -> Result<(), StoreError> {
        let Announcement { process, text } = announcement;
        let (key, processes) = (self.process_key(&process), self.rules_key(":processes"));
        let mut eval = Cmd::new();
        eval.arg("EVAL").arg(ANNOUNCE).arg(2).arg(&key).arg(&processes);
        eval.arg(process).arg(text).arg(ANNOUNCED_MS);
        let now = self.servers.clock.sent().map(|now| (now / 1_000).to_string());
        eval.arg(now.unwrap_or_default());
        self.send_for_rules(&eval, &key).await.map(drop)
    }

    async fn announcements(&self) -> Result<Vec<String>, StoreError> {
        let processes = self.rules_key(":processes");
        let mut range = Cmd::new();
        range.arg("ZRANGE").arg(&processes).arg(0).arg(MOST_PROCESSES - 1);
        let processes = texts(self.send_for_rules(&range, &processes).await?)?;
        let keys: Vec<_> = processes.iter().map(|process| self.process_key(process)).collect();
        let Some(first) = keys.first() else { return Ok(Vec::new()) };
        let mut get = Cmd::new();
        get.arg("MGET").arg(&keys);
        let mut announced = texts(self.send_for_rules(&get, first).await?)?;
        // An announcement that has expired is empty.
        announced.retain(|text| !text.is_empty());
        Ok(announced)
    }

    async fn scan(
        &self,
        start: &[u8],
        position: ScanPosition,
    ) -> Result<(Vec<Vec<u8>>, Option<ScanPosition>), StoreError> {
        self.scan_from(start, position).await
    }
}

impl Redis {
    /// Returns a key of the rules. All of them share a hash slot, and none is a key of a count.
    fn rules_key(&self, suffix: &str) -> String {
        format!("{}:{{rules}}{suffix}", self.prefix)
    }

    fn process_key(&self, process: &str) -> String {
        self.rules_key(&format!(":process:{process}"))
    }

    async fn send_for_rules(&self, command: &Cmd, key: &str) -> Result<Value, StoreError> {
        let servers = &self.servers;
        let (by, _): (Instant, _) = servers.admit(false)?;
        let reply = servers.send(command, key.as_bytes(), true, by).await;
        reply.map_err(|failure| failure.into_store_error(servers.deadline, &[key.as_bytes()]))
    }
}

/// Returns the texts of a reply.
fn texts(value: Value) -> Result<Vec<String>, StoreError> {
    let Value::Array(values) = value else { return Err(unexpected()) };
    values.into_iter().map(|value| text(value).ok_or_else(unexpected)).collect()
}

/// Returns the text of a reply; an empty one if there is no value.
fn text(value: Value) -> Option<String> {
    match value {
        Value::Nil => Some(String::new()),
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        _ => None,
    }
}
