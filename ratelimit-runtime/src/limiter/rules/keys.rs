//! The keys of a limit that have counts in Redis.

use std::sync::Arc;

use crate::key::OwnedKey;
use crate::limit::Limit;
use crate::limiter::Operator;
use crate::reply::{Answer, StoreError};
use crate::store::{RuleStore, ScanPosition, Store};

/// A page of the keys of a limit: [`Operator::keys`].
#[derive(Clone, Debug)]
#[non_exhaustive]
#[cfg_attr(docsrs, doc(cfg(feature = "rules")))]
pub struct KeysPage {
    /// Keys with a count. A page can be empty although more follow, and a key can be on two pages.
    pub keys: Vec<OwnedKey>,
    /// Where the next page begins; `None` on the last page.
    pub next: Option<KeysCursor>,
}

/// Where a page of keys begins.
#[derive(Clone, Debug)]
#[cfg_attr(docsrs, doc(cfg(feature = "rules")))]
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
    #[cfg_attr(docsrs, doc(cfg(feature = "rules")))]
    pub fn keys(&self, limit: &Limit, after: Option<KeysCursor>) -> Answer<KeysPage> {
        let backend = Arc::clone(&self.0.checker.backend);
        let terms = backend.counted(limit);
        Arc::clone(&self.0.checker.backend).answer(move || async move {
            let store = backend.shared_store().ok_or(StoreError::NotShared)?;
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
    match rest {
        b"%" => Some(OwnedKey::written(b"%")),
        // See `KeyWriter::count_name`.
        b"{(}" => Some(OwnedKey::written(b"")),
        [b'{', key @ .., b'}'] => Some(OwnedKey::written(key)),
        _ => None,
    }
}
