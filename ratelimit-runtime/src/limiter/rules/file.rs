//! A file with rules.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use crate::rules::{RuleSet, RuleSetError};

/// The largest file.
const MAX_BYTES: u64 = 16 << 20;

/// The time after which a file system that has not replied counts as stuck.
const READ_DEADLINE: Duration = Duration::from_secs(5);

/// A file with rules, and the texts that were read from it.
#[derive(Clone)]
pub(super) struct RulesFile {
    path: PathBuf,
    /// The text whose rules were applied last.
    applied: String,
    /// The text that was read last. It is applied after it was read twice, because the limiter can read one half of a
    /// file that is written in place.
    seen: String,
    /// The last mistake, which is reported once.
    mistake: Option<String>,
}

impl RulesFile {
    /// Reads a file for the first time.
    pub(super) fn open(path: PathBuf) -> Result<(Self, RuleSet), RuleSetError> {
        let (applied, seen, mistake) = Default::default();
        let mut file = Self { path, applied, seen, mistake };
        let rules = read(&file.path).map_err(RuleSetError::new).and_then(|text| {
            file.seen.clone_from(&text);
            file.rules(text)
        });
        rules.map_err(|error| file.named(&error)).map(|rules| (file, rules))
    }

    /// Passes the rules of the file to `apply` if its text has changed. Reports new rules, and each mistake once.
    pub(super) fn change(&mut self, text: io::Result<String>) -> Option<RuleSet> {
        let rules = match text {
            Ok(text) if self.applied == text => {
                self.mistake = None;
                return None;
            }
            Ok(text) if self.seen != text => {
                self.seen = text;
                return None;
            }
            Ok(text) => self.rules(text),
            Err(error) => Err(RuleSetError::new(error)),
        };
        let file = self.path.display().to_string();
        let mistake = rules.as_ref().err().map(|error| self.named(error).to_string());
        match &mistake {
            None => tracing::info!(file, "the rate limits follow new rules"),
            Some(error) if self.mistake != mistake => {
                tracing::error!(file, error, "the rules in force stay");
            }
            Some(_) => {}
        }
        self.mistake = mistake;
        rules.ok()
    }

    fn rules(&mut self, text: String) -> Result<RuleSet, RuleSetError> {
        let is_json = self.path.extension().is_some_and(|extension| extension == "json");
        let rules = if is_json { RuleSet::from_json(&text) } else { RuleSet::from_toml(&text) }?;
        self.applied = text;
        Ok(rules)
    }

    /// Names the file in an error.
    fn named(&self, error: &RuleSetError) -> RuleSetError {
        RuleSetError::new(format_args!("the rules in `{}`: {error}", self.path.display()))
    }
}

/// The read of a file on another thread, because a file system can be stuck. One that is stuck is awaited again.
#[derive(Default)]
pub(super) struct FileReader(Option<JoinHandle<io::Result<String>>>);

impl FileReader {
    /// Reads a file. Fails if the file system does not reply within some seconds.
    pub(super) async fn read(&mut self, path: PathBuf) -> io::Result<String> {
        let reading = self.0.get_or_insert_with(|| spawn_blocking(move || read(&path)));
        let Ok(text) = timeout(READ_DEADLINE, reading).await else {
            return Err(io::Error::other("the file system does not reply"));
        };
        self.0 = None;
        text?
    }
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
