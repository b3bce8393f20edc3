//! The command `watch`: rejected keys and changes of rules as they come.

use std::collections::HashMap;
use std::mem;
use std::process::ExitCode;
use std::time::Duration;

use ratelimit_runtime::RateLimiter;

use crate::look::{self, TopKey};
use crate::text;

/// The pause before Redis is asked again. Processes announce what they reject every ten seconds.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Prints each change of rules since the start, and each key of which calls were rejected since it was last printed.
pub(crate) async fn run(limiter: &RateLimiter, is_json: bool) -> anyhow::Result<ExitCode> {
    let newest = |changes: &[look::Change]| changes.first().map(|change| change.version.clone());
    let mut last_version = newest(&look::changes(limiter).await?);
    let mut seen = HashMap::new();
    loop {
        let changes = look::changes(limiter).await?;
        let known =
            changes.iter().position(|change| Some(&change.version) == last_version.as_ref());
        for change in changes[..known.unwrap_or(changes.len())].iter().rev() {
            text::print(change, is_json)?;
        }
        last_version = newest(&changes).or(last_version);
        let before = mem::take(&mut seen);
        for rejected in look::rejected(limiter).await? {
            let TopKey { limit, period_ms, key, is_shadow, last_unix_ms, .. } = &rejected;
            let place = (limit.clone(), *period_ms, key.clone(), *is_shadow);
            if before.get(&place).is_none_or(|before| before < last_unix_ms) {
                text::print(&rejected, is_json)?;
            }
            seen.insert(place, *last_unix_ms);
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}
