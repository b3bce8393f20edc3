//! The rules that all processes share, beside the counts of a shared store.

/// The rules that all processes share, as JSON.
pub(crate) struct StoredRules {
    /// Empty if there are none.
    pub(crate) version: String,
    pub(crate) rules: String,
}

/// The most bytes of an announcement.
pub(crate) const MAX_ANNOUNCEMENT: usize = 1 << 16;

/// The most bytes of the id of a process.
pub(crate) const MAX_PROCESS_ID: usize = 128;

/// Where a search for keys goes on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ScanPosition {
    /// The index of the server.
    pub(crate) server: usize,
    pub(crate) cursor: u64,
}
