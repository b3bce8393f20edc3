//! How an announcement writes the rejected keys of a process, and reads those of another.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::limit::Name;
use crate::report::RejectedKey;

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

pub(super) fn serialize<S: Serializer>(
    keys: &[RejectedKey],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let since_epoch =
        |time: SystemTime| micros(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
    let written = keys.iter().map(|key| WrittenKey {
        limit: key.limit.as_str().to_owned(),
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
pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<RejectedKey>, D::Error> {
    let written: Vec<WrittenKey> = Vec::deserialize(deserializer)?;
    Ok(written.into_iter().take(MOST_REJECTED).filter_map(WrittenKey::read).collect())
}

impl WrittenKey {
    fn read(self) -> Option<RejectedKey> {
        let Self { limit, period, key, is_shadow, rejected, since, last } = self;
        let time = |micros| SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(micros));
        let (since, last) = (time(since)?, time(last)?);
        let (limit, period) = (Name::announced(&limit).ok()?, Duration::from_micros(period));
        let key = RejectedKey { limit, period, key, is_shadow, rejected, since, last };
        (key.key.len() <= MAX_KEY).then_some(key)
    }
}
