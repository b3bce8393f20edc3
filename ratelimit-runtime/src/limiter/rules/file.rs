//! A file with rules.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use crate::reply::BuildError;
use crate::rules::{RuleSet, RuleSetError};

/// The largest file.
const MAX_BYTES: u64 = 16 << 20;

/// The time after which a file system that has not replied counts as stuck.
const READ_DEADLINE: Duration = Duration::from_secs(5);

/// A file with rules, and the texts that were read from it.
#[derive(Default)]
pub(super) struct RulesFile {
    path: PathBuf,
    /// The text whose rules were applied last.
    applied: String,
    /// The text that was read last. It is applied after it was read twice, because the limiter can read one half of a
    /// file that is written in place.
    seen: String,
    /// The last mistake, which is reported once.
    mistake: Option<String>,
    /// The reading that has not ended.
    reading: Option<JoinHandle<io::Result<String>>>,
}

impl RulesFile {
    /// Creates a file whose text `applied` is in force.
    pub(super) fn new(path: PathBuf, applied: String) -> Self {
        // An empty text is not the one that was read last: it, too, is read twice.
        Self { path, seen: applied.clone(), applied, ..Self::default() }
    }

    /// Looks for new rules in the file.
    pub(super) async fn look(&mut self) -> Option<RuleSet> {
        let text = match self.read().await {
            Ok(text) if self.applied == text => {
                (self.seen, self.mistake) = (text, None);
                return None;
            }
            Ok(text) if self.seen != text => {
                self.seen = text;
                return None;
            }
            text => text,
        };
        let read = rules_of(&self.path, text);
        let file = self.path.display().to_string();
        let mistake = read.as_ref().err().map(ToString::to_string);
        match &mistake {
            None => tracing::info!(file, "the rate limits follow new rules"),
            Some(error) if self.mistake != mistake => {
                tracing::error!(file, error, "the rules in force stay");
            }
            Some(_) => {}
        }
        self.mistake = mistake;
        let (rules, text) = read.ok()?;
        self.applied = text;
        Some(rules)
    }

    /// Reads the file on another thread, because a file system can be stuck: a read that is stuck is awaited again.
    /// Fails if the file system does not reply within some seconds.
    async fn read(&mut self) -> io::Result<String> {
        let path = self.path.clone();
        let reading = self.reading.get_or_insert_with(|| spawn_blocking(move || read(&path)));
        let Ok(text) = timeout(READ_DEADLINE, reading).await else {
            return Err(io::Error::other("the file system does not reply"));
        };
        self.reading = None;
        text?
    }
}

/// Reads a file for the first time. Returns its rules and its text.
pub(super) fn open(path: &Path) -> Result<(RuleSet, String), BuildError> {
    let invalid = |error: RuleSetError| error.to_string().into();
    rules_of(path, read(path)).map_err(|error| BuildError::InvalidRules { message: invalid(error) })
}

/// Returns the rules in the text of a file, and the text. An error names the file.
fn rules_of(path: &Path, text: io::Result<String>) -> Result<(RuleSet, String), RuleSetError> {
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    let read = if is_json { RuleSet::from_json } else { RuleSet::from_toml };
    let rules = text.map_err(RuleSetError::new).and_then(|text| Ok((read(&text)?, text)));
    let name = |error| format!("the rules in `{}`: {error}", path.display());
    rules.map_err(|error| RuleSetError::new(name(error)))
}

/// Reads a file with rules.
fn read(path: &Path) -> io::Result<String> {
    let metadata = fs::metadata(path)?;
    // Opening a pipe blocks until another process writes to it.
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if metadata.len() > MAX_BYTES {
        return Err(io::Error::other("the file has over 16 MiB"));
    }
    fs::read_to_string(path)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_is_empty_for_a_moment_changes_no_rules() {
        const RULES: &str = "[api]\nthreshold = 5\n";
        let path = std::env::temp_dir().join(format!("rules-{}.toml", std::process::id()));
        let write = |text| fs::write(&path, text).expect("written");
        write(RULES);
        let (_, text) = open(&path).expect("valid");
        let mut file = RulesFile::new(path.clone(), text);
        for _ in 0..2 {
            write("");
            assert!(file.look().await.is_none());
            write(RULES);
            assert!(file.look().await.is_none());
        }
        write("");
        assert!(file.look().await.is_none());
        assert!(file.look().await.is_some_and(|rules| rules.is_empty()), "it was read twice");
        fs::remove_file(&path).expect("removed");
    }
}
