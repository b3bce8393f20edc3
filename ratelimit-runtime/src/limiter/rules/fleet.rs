//! What each process of a fleet announces in Redis: its limits, and the version of its rules.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;

use once_cell::sync::Lazy;

use crate::limit::Limit;
use crate::limiter::RateLimiter;
use crate::registry::{self, RegisteredLimit};
use crate::reply::{Answer, StoreError};
use crate::store::{Announcement, RuleStore};

/// The id of this process: the name of its program, its number, and a random part, because numbers are used again.
pub(super) static PROCESS: Lazy<String> = Lazy::new(|| {
    let program = std::env::current_exe().ok();
    let program = program.as_ref().and_then(|path| path.file_stem()?.to_str());
    let random = RandomState::new().hash_one(0) as u32;
    format!("{}-{}-{random:08x}", program.unwrap_or("process"), std::process::id())
});

/// A process of a fleet: [`RateLimiter::fleet`].
#[derive(Clone, Debug, serde::Deserialize, serde::Serialize)]
#[non_exhaustive]
#[cfg_attr(docsrs, doc(cfg(feature = "rules")))]
pub struct AnnouncedProcess {
    /// The name of its program, its number, and a random part.
    pub id: String,
    /// The version of the rules that are in force in it; empty without rules.
    pub rules: String,
    /// Its annotated limits.
    pub limits: Vec<AnnouncedLimit>,
}

/// An annotated limit of a process of a fleet.
#[derive(Clone, Debug, serde::Deserialize, serde::Serialize)]
#[non_exhaustive]
#[cfg_attr(docsrs, doc(cfg(feature = "rules")))]
pub struct AnnouncedLimit {
    /// The limit. If each call computes the amounts, they are 1 here.
    pub limit: Limit,
    /// Where it is in the code: the file, the line and the column.
    pub place: String,
    /// Whether each call computes the threshold or the burst.
    pub is_computed: bool,
}

impl AnnouncedProcess {
    /// Reads announcements. Those of another version of this library can be unreadable.
    pub(super) fn read(texts: &[String]) -> Vec<Self> {
        texts.iter().filter_map(|text| serde_json::from_str(text).ok()).collect()
    }
}

impl From<RegisteredLimit> for AnnouncedLimit {
    fn from(RegisteredLimit { limit, place, is_computed }: RegisteredLimit) -> Self {
        Self { limit, place: place.to_owned(), is_computed }
    }
}

/// Announces the limits of this process.
pub(super) async fn announce(store: &impl RuleStore, version: &str) -> Result<(), StoreError> {
    let limits = registry::limits().into_iter().map(AnnouncedLimit::from).collect();
    let process = AnnouncedProcess { id: PROCESS.clone(), rules: version.to_owned(), limits };
    let text = serde_json::to_string(&process).unwrap_or_default();
    store.announce(Announcement { process: PROCESS.clone(), text }).await
}

impl RateLimiter {
    /// Returns the running processes that use [`Rules::redis`](crate::Rules::redis) with the Redis and the key prefix
    /// of this limiter, with the annotated limits that they have called. A process that ends is listed for up to 30
    /// seconds.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when Redis does not reply. [`StoreError::NotShared`] without Redis.
    #[cfg_attr(docsrs, doc(cfg(feature = "rules")))]
    pub fn fleet(&self) -> Answer<Vec<AnnouncedProcess>> {
        let backend = Arc::clone(&self.checker.backend);
        Answer::pending(async move {
            let store = backend.rule_store().ok_or(StoreError::NotShared)?;
            let texts = store.announcements().await?;
            Ok(AnnouncedProcess::read(&texts))
        })
    }
}
