//! A file with rules.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::rules::{RuleSet, RuleSetError};

/// The largest file.
const MAX_BYTES: u64 = 16 << 20;

/// The time after which a file system that has not replied counts as stuck.
pub(super) const READ_DEADLINE: Duration = Duration::from_secs(5);

/// The most reads that may be stuck at a time: each holds a thread.
const MAX_STANDING: usize = 4;

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

/// Reads files on other threads, because a file system can be stuck.
#[derive(Default)]
pub(super) struct FileReader {
    /// Each read that has not ended holds a clone.
    standing: Arc<()>,
}

impl FileReader {
    /// Returns the result of `read`. Fails if that takes longer than `deadline`, and at once if too many reads are
    /// stuck already.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        deadline: Duration,
        read: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let is_stuck = || io::Error::other("the file system does not reply");
        if Arc::strong_count(&self.standing) > MAX_STANDING {
            return Err(is_stuck());
        }
        let standing = Arc::clone(&self.standing);
        let reading = spawn_blocking(move || {
            let result = read();
            drop(standing);
            result
        });
        timeout(deadline, reading).await.map_err(|_| is_stuck())??
    }
}

/// Reads a file with rules.
pub(super) fn read(path: &Path) -> io::Result<String> {
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[tokio::test]
    async fn reads_again_while_few_reads_stand_still() {
        let reader = FileReader::default();
        let (ends, mut senders) = (Duration::from_secs(60), Vec::new());
        for _ in 0..=MAX_STANDING {
            let (sender, receiver) = channel::<()>();
            senders.push(sender);
            let stuck = move || receiver.recv().map_err(io::Error::other);
            reader.run(Duration::from_millis(1), stuck).await.expect_err("no reply");
            if senders.len() < MAX_STANDING {
                reader.run(ends, || Ok(())).await.expect("a reply");
            }
        }
        reader.run(ends, || Ok(())).await.expect_err("too many reads stand still");
        drop(senders);
        while Arc::strong_count(&reader.standing) > 1 {
            tokio::task::yield_now().await;
        }
        reader.run(ends, || Ok(())).await.expect("a reply");
    }
}
