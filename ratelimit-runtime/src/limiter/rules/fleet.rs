//! The announcements of a fleet in Redis: each process announces its limits, its rejected keys, and the version of its
//! rules. Also finds the keys of a limit that have counts in Redis.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::{Duration, SystemTime};

use once_cell::sync::Lazy;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::background::{OwnValue, lock_own};
use crate::key::OwnedKey;
use crate::limit::{Limit, announced_name};
use crate::limiter::Operator;
use crate::registry::RegisteredLimit;
use crate::reply::{Answer, StoreError};
use crate::report::RejectedKey;
use crate::store::{MAX_ANNOUNCEMENT, MAX_PROCESS_ID, ScanPosition, SharedStore};
use crate::threads::Mutex;

/// The number of announcements that are read together.
const PAGE: usize = 16;

/// The most bytes of all announcements of a fleet, for [`Operator::fleet`].
const MAX_FLEET: usize = 1 << 26;

/// The id of this process.
static PROCESS: Lazy<Mutex<OwnValue<ProcessId>>> = Lazy::new(Mutex::default);

/// The name of the program of a process, its number, and a random part, because numbers are used again.
struct ProcessId(String);

impl Default for ProcessId {
    fn default() -> Self {
        let program = std::env::current_exe().ok();
        let program = program.as_ref().and_then(|path| path.file_stem()?.to_str());
        let random = RandomState::new().hash_one(0) as u32;
        let end = format!("-{}-{random:08x}", std::process::id());
        let mut id = program.unwrap_or("process").to_owned();
        while id.len() + end.len() > MAX_PROCESS_ID {
            id.pop();
        }
        Self(id + &end)
    }
}

/// Returns the id of this process.
pub(super) fn process_id() -> String {
    lock_own(&PROCESS).0.clone()
}

/// A process of a fleet: [`Operator::fleet`].
#[derive(Clone, Debug, serde::Deserialize, serde::Serialize)]
#[non_exhaustive]
pub struct AnnouncedProcess {
    /// The name of its program, its number, and a random part.
    pub id: String,
    /// The version of the rules that are in force in it; empty without rules.
    pub rules: String,
    /// Its limits: those of annotated functions after their first call, those of layers, and those that code checks by
    /// hand once they have rejected a call or a call has looked for their rules. At most 256 are not annotated.
    pub limits: Vec<AnnouncedLimit>,
    /// The number of further limits, for which an announcement has no room: it has 64 KiB at most.
    #[serde(default)]
    pub left_out: usize,
    /// The 20 keys of which it has rejected the most calls: [`Operator::rejected_keys`].
    #[serde(default, serialize_with = "serialize", deserialize_with = "deserialize")]
    pub rejected: Vec<RejectedKey>,
}

/// A limit of a process of a fleet.
#[derive(Clone, Debug, serde::Deserialize, serde::Serialize)]
#[non_exhaustive]
pub struct AnnouncedLimit {
    /// The limit. If each call computes the amounts, they are 1 here.
    #[serde(deserialize_with = "Limit::announced")]
    pub limit: Limit,
    /// Its place in the code: the file, the line and the column. Empty if code checks the limit by hand.
    pub place: String,
    /// Whether each call computes the threshold or the burst. Then [`Operator::usage`] tells what is used of a key;
    /// [`RateLimiter::peek`](crate::RateLimiter::peek) would compare it with 1.
    pub is_computed: bool,
}

/// Returns the announcement of these limits, or of as many as it has room for.
pub(super) fn announcement(
    id: String,
    version: &str,
    limits: Vec<RegisteredLimit>,
    rejected: Vec<RejectedKey>,
) -> String {
    let announced = |RegisteredLimit { limit, place, is_computed }: RegisteredLimit| {
        AnnouncedLimit { limit, place: place.to_owned(), is_computed }
    };
    let limits = limits.into_iter().map(announced).collect();
    let mut process =
        AnnouncedProcess { id, rules: version.to_owned(), limits, left_out: 0, rejected };
    loop {
        let text = serde_json::to_string(&process).unwrap_or_default();
        let (bytes, limits) = (text.len(), process.limits.len());
        if bytes <= MAX_ANNOUNCEMENT || limits == 0 {
            return text;
        }
        process.limits.truncate(limits * MAX_ANNOUNCEMENT / (bytes + 1));
        process.left_out += limits - process.limits.len();
    }
}

/// Passes the announcement of each process of the fleet to `read`, until `read` returns an error.
pub(super) async fn read_announcements(
    store: &SharedStore,
    mut read: impl FnMut(&str) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    for page in store.processes().await?.chunks(PAGE) {
        for text in store.announcements(page).await? {
            read(&text)?;
        }
    }
    Ok(())
}

impl Operator<'_> {
    /// Returns the running processes that use [`Rules::redis`](crate::Rules::redis) with the Redis and the key prefix
    /// of this limiter, with their limits and the keys that they reject. A process that has no limits yet is not
    /// listed, and a process that ends is listed for up to 30 seconds.
    ///
    /// A user who can write to this Redis can announce any text: escape the texts for their destination. A process
    /// keeps up to 10,000 announced names of limits, in addition to the 10,000 of [`Limit::kept_name`]. It
    /// does not list a process that announces more.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when Redis does not reply, and when the announcements have over 64 MiB together.
    /// [`StoreError::NotShared`] without Redis.
    #[must_use]
    pub fn fleet(&self) -> Answer<Vec<AnnouncedProcess>> {
        self.0.checker.backend.answer(|backend| async move {
            let store = backend.shared.as_ref().ok_or(StoreError::NotShared)?;
            let (mut fleet, mut bytes) = (Vec::new(), 0);
            let read = |text: &str| {
                bytes += text.len();
                if bytes > MAX_FLEET {
                    return Err(unreadable(
                        "the announcements of the processes are too large: over 64 MiB",
                    ));
                }
                // Announcements of another version of this library can be unreadable.
                fleet.extend(serde_json::from_str::<AnnouncedProcess>(text));
                Ok(())
            };
            read_announcements(store, read).await?;
            Ok(fleet)
        })
    }
}

/// Returns the error of rules, or of announcements, that cannot be read.
pub(super) fn unreadable(message: &str) -> StoreError {
    StoreError::Server { code: "RULES".into(), message: message.into() }
}

/// The number of rejected keys that a process announces.
pub(super) const MOST_REJECTED: usize = 20;

/// The most bytes of the text of a key. A key has 256, and each can be written as three.
const MAX_KEY: usize = 1_000;

/// A [`RejectedKey`], with its times in microseconds.
#[derive(Deserialize, Serialize)]
struct WrittenKey {
    limit: String,
    period: u64,
    key: String,
    is_shadow: bool,
    rejected: u64,
    since: u64,
    last: u64,
}

fn serialize<S: Serializer>(keys: &[RejectedKey], serializer: S) -> Result<S::Ok, S::Error> {
    let micros = |time: Duration| time.as_micros() as u64;
    let since_epoch =
        |time: SystemTime| micros(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
    let written = keys.iter().map(|key| WrittenKey {
        limit: key.limit.to_owned(),
        period: micros(key.period),
        key: key.key.clone(),
        is_shadow: key.is_shadow,
        rejected: key.rejected,
        since: since_epoch(key.since),
        last: since_epoch(key.last),
    });
    serializer.collect_seq(written)
}

/// Leaves out what cannot be read: any client of Redis can write anything there.
fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<RejectedKey>, D::Error> {
    let written: Vec<WrittenKey> = Vec::deserialize(deserializer)?;
    Ok(written.into_iter().take(MOST_REJECTED).filter_map(WrittenKey::read).collect())
}

impl WrittenKey {
    fn read(self) -> Option<RejectedKey> {
        let Self { limit, period, key, is_shadow, rejected, since, last } = self;
        let time = |micros| SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(micros));
        let (since, last) = (time(since)?, time(last)?);
        let (limit, period) = (announced_name(&limit).ok()?, Duration::from_micros(period));
        let key = RejectedKey { limit, period, key, is_shadow, rejected, since, last };
        (key.key.len() <= MAX_KEY).then_some(key)
    }
}

/// A page of the keys of a limit: [`Operator::keys`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KeysPage {
    /// Keys with a count. A page can be empty although more follow, and a key can be on two pages.
    pub keys: Vec<OwnedKey>,
    /// Where the next page begins; `None` on the last page.
    pub next: Option<KeysCursor>,
}

/// Where a page of keys begins.
#[derive(Clone, Debug)]
pub struct KeysCursor(ScanPosition);

impl Operator<'_> {
    /// Reads keys of a limit that have a count in Redis, page by page. A page looks at about 1,000 keys of the server,
    /// of any limit or application, so it takes Redis less than a millisecond. Make a pause between pages.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use ratelimit_runtime::{Limit, RateLimiter};
    ///
    /// const API: Limit = Limit::sliding("api", 300, Duration::from_secs(60));
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::builder().redis("redis://127.0.0.1").build()?;
    /// let mut next = None;
    /// loop {
    ///     let page = limiter.operator().keys(&API, next).await?;
    ///     for key in page.keys {
    ///         println!("{key}: {}", limiter.peek(&API, &key, 1).await?.remaining);
    ///     }
    ///     let Some(cursor) = page.next else { break };
    ///     next = Some(cursor);
    ///     tokio::time::sleep(Duration::from_millis(10)).await;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`StoreError`] when Redis does not reply. [`StoreError::NotShared`] without Redis.
    #[must_use]
    pub fn keys(&self, limit: &Limit, after: Option<KeysCursor>) -> Answer<KeysPage> {
        let backend = &self.0.checker.backend;
        let terms = backend.counted(limit);
        backend.answer(move |backend| async move {
            let store = backend.shared.as_ref().ok_or(StoreError::NotShared)?;
            // The name of the count without a key, up to the sign for that.
            let mut start = store.count_name(&terms, &());
            start.pop();
            let position = after.map(|KeysCursor(position)| position).unwrap_or_default();
            let (names, next) = store.scan(&start, position).await?;
            let keys = names.iter().filter_map(|name| key_of(name.strip_prefix(&start[..])?));
            Ok(KeysPage { keys: keys.collect(), next: next.map(KeysCursor) })
        })
    }
}

/// Returns the key in the rest of the name of a count; `None` if the name is of another limit, or of a segment.
fn key_of(rest: &[u8]) -> Option<OwnedKey> {
    matches!(rest, b"%" | [b'{', .., b'}']).then(|| OwnedKey::in_count_name(rest))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_announcement_is_bounded_and_says_what_it_leaves_out() {
        let limit = Limit::sliding("a_name_of_usual_length", 5, Duration::from_secs(60));
        for count in [0, 1, 300, 5_000] {
            let place = "a/path/of/usual/length/in/a/crate.rs:100:1";
            let limit = RegisteredLimit { limit, place, is_computed: false };
            let text =
                announcement("program-1-x".to_owned(), "1-x", vec![limit; count], Vec::new());
            assert!(text.len() <= MAX_ANNOUNCEMENT, "{}", text.len());
            let read: AnnouncedProcess = serde_json::from_str(&text).expect("readable");
            assert_eq!(read.limits.len() + read.left_out, count);
            assert!(read.left_out == 0 || read.limits.len() > 250, "{}", read.limits.len());
        }
    }
}
