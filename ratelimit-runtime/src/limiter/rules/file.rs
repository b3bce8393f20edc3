//! A file with rules.

use std::fmt;
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
const READ_DEADLINE: Duration = Duration::from_secs(5);

/// The most reads that may be stuck at a time: each holds a thread.
const MAX_STANDING: usize = 4;

/// A file with rules, and the text that was last read from it.
pub(super) struct RulesFile {
    path: PathBuf,
    /// The text whose rules were applied or rejected.
    applied: Option<String>,
    /// The text that was read last. It is applied after it was read twice, because the limiter can read one half of a
    /// file that is written in place.
    seen: Option<String>,
    /// The last mistake, which is reported once.
    mistake: Option<String>,
}

impl RulesFile {
    /// Reads a file for the first time.
    pub(super) fn open(path: PathBuf) -> Result<(Self, RuleSet), RuleSetError> {
        let mut file = Self { path, applied: None, seen: None, mistake: None };
        let text = file.in_file_if_wrong(read(&file.path))?;
        let set = file.parse(&text)?;
        (file.applied, file.seen) = (Some(text.clone()), Some(text));
        Ok((file, set))
    }

    pub(super) fn path(&self) -> impl fmt::Display + '_ {
        self.path.display()
    }

    /// Returns the rules of the file if it has changed since the last look.
    pub(super) fn changed(
        &mut self,
        text: io::Result<String>,
    ) -> Result<Option<RuleSet>, RuleSetError> {
        let text = self.in_file_if_wrong(text)?;
        if self.applied.as_ref() == Some(&text) {
            // The file has its earlier text again.
            self.mistake = None;
            return Ok(None);
        }
        if self.seen.as_ref() != Some(&text) {
            self.seen = Some(text);
            return Ok(None);
        }
        let set = self.parse(&text)?;
        self.applied = Some(text);
        Ok(Some(set))
    }

    /// Reports new rules, and each mistake once.
    pub(super) fn report(&mut self, result: Result<(), RuleSetError>) {
        let file = self.path().to_string();
        let Err(error) = result else {
            self.mistake = None;
            return tracing::info!(file, "the rate limits follow new rules");
        };
        let message = error.to_string();
        if self.mistake.as_ref() != Some(&message) {
            tracing::error!(file, error = message, "the rules in force stay");
            self.mistake = Some(message);
        }
    }

    /// Names the file in an error.
    pub(super) fn in_file(&self, error: &dyn fmt::Display) -> RuleSetError {
        RuleSetError::new(format_args!("the rules in `{}`: {error}", self.path()))
    }

    fn parse(&self, text: &str) -> Result<RuleSet, RuleSetError> {
        let is_json = self.path.extension().is_some_and(|extension| extension == "json");
        let set = if is_json { RuleSet::from_json(text) } else { RuleSet::from_toml(text) };
        set.map_err(|error| self.in_file(&error))
    }

    fn in_file_if_wrong(&self, text: io::Result<String>) -> Result<String, RuleSetError> {
        text.map_err(|error| self.in_file(&error))
    }
}

/// Reads files on other threads, because a file system can be stuck.
#[derive(Default)]
pub(super) struct FileReader {
    /// Each read that has not ended holds a clone.
    standing: Arc<()>,
}

impl FileReader {
    /// Reads a file with rules. Fails if that takes too long, and at once if too many reads are stuck already.
    pub(super) async fn read(&self, path: &Path) -> io::Result<String> {
        let path = path.to_owned();
        self.run(READ_DEADLINE, move || read(&path)).await
    }

    async fn run<T: Send + 'static>(
        &self,
        deadline: Duration,
        read: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let stands_still = || io::Error::other("the file system does not reply");
        if Arc::strong_count(&self.standing) > MAX_STANDING {
            return Err(stands_still());
        }
        let standing = Arc::clone(&self.standing);
        let reading = spawn_blocking(move || {
            let result = read();
            drop(standing);
            result
        });
        match timeout(deadline, reading).await {
            Ok(Ok(result)) => result,
            Ok(Err(panicked)) => Err(io::Error::other(panicked)),
            Err(_) => Err(stands_still()),
        }
    }
}

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
