//! The rules that all processes share, beside the counts of a shared store.

use crate::reply::StoreError;

/// The rules that all processes share, as JSON.
pub(crate) struct StoredRules {
    /// Empty if there are none.
    pub(crate) version: String,
    pub(crate) rules: String,
}

/// Rules that replace the shared rules of all processes.
#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "only Redis has shared rules"))]
pub(crate) struct NewRules {
    /// The version that these rules replace.
    pub(crate) replaces: String,
    pub(crate) version: String,
    /// As JSON.
    pub(crate) rules: String,
    /// The entry in the list of changes.
    pub(crate) change: String,
}

/// The most bytes of an announcement.
pub(crate) const MAX_ANNOUNCEMENT: usize = 1 << 16;

/// The most bytes of the id of a process.
pub(crate) const MAX_PROCESS_ID: usize = 128;

/// The announcement of one process to the other processes.
#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "only Redis has shared rules"))]
pub(crate) struct Announcement {
    pub(crate) process: String,
    pub(crate) text: String,
}

/// Where a search for keys goes on.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "only Redis has shared rules"))]
pub(crate) struct ScanPosition {
    /// The index of the server.
    pub(crate) server: usize,
    pub(crate) cursor: u64,
}

/// A store of the rules that all processes share.
pub(crate) trait RuleStore: Send + Sync {
    /// Returns the rules that all processes share, unless they have the version that the caller knows.
    fn read_rules(
        &self,
        known: &str,
    ) -> impl Future<Output = Result<Option<StoredRules>, StoreError>> + Send;

    /// Replaces the rules that all processes share, if they have the version that `new` replaces. Returns the version
    /// that they had.
    fn write_rules(&self, new: NewRules)
    -> impl Future<Output = Result<String, StoreError>> + Send;

    /// Returns the last changes of the rules, the newest first: each its time in microseconds, and its text.
    fn rule_changes(
        &self,
        most: usize,
    ) -> impl Future<Output = Result<Vec<(u64, String)>, StoreError>> + Send;

    /// Announces this process for half a minute.
    fn announce(
        &self,
        announcement: Announcement,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns the ids of the processes that announce something.
    fn processes(&self) -> impl Future<Output = Result<Vec<String>, StoreError>> + Send;

    /// Returns what these processes announce.
    fn announcements(
        &self,
        processes: &[String],
    ) -> impl Future<Output = Result<Vec<String>, StoreError>> + Send;

    /// Returns whether this process is the first that reports about the rules of a version.
    fn claim_report(
        &self,
        version: &str,
        process: &str,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Returns some names of counts that begin with `start`, and where to go on.
    fn scan(
        &self,
        start: &[u8],
        position: ScanPosition,
    ) -> impl Future<Output = Result<(Vec<Vec<u8>>, Option<ScanPosition>), StoreError>> + Send;
}
