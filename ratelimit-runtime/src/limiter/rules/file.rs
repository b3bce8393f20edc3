//! A file with rules.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::rules::{InvalidRules, RuleSet};

/// The largest file.
const MAX_BYTES: u64 = 16 << 20;

/// A file with rules, and what was last seen of it.
pub(super) struct RulesFile {
    path: PathBuf,
    /// The text whose rules were applied or rejected.
    applied: Option<String>,
    /// The text of the last look. It is applied once two looks see it, because a file that is written in place can be
    /// read half.
    seen: Option<String>,
    /// The last mistake, which is reported once.
    mistake: Option<String>,
}

impl RulesFile {
    /// Reads a file for the first time.
    pub(super) fn open(path: PathBuf) -> Result<(Self, RuleSet), InvalidRules> {
        let mut file = Self { path, applied: None, seen: None, mistake: None };
        let text = file.read()?;
        let set = file.parse(&text)?;
        (file.applied, file.seen) = (Some(text.clone()), Some(text));
        Ok((file, set))
    }

    pub(super) fn path(&self) -> impl fmt::Display + '_ {
        self.path.display()
    }

    /// Returns the rules of the file if it has changed.
    pub(super) fn changed(&mut self) -> Result<Option<RuleSet>, InvalidRules> {
        let text = self.read()?;
        if self.applied.as_ref() == Some(&text) {
            // The file is again as it was.
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

    /// Reports what became of the rules, each mistake once.
    pub(super) fn report(&mut self, result: Result<(), InvalidRules>) {
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
    pub(super) fn in_file(&self, error: &dyn fmt::Display) -> InvalidRules {
        InvalidRules::new(format_args!("the rules in `{}`: {error}", self.path()))
    }

    fn parse(&self, text: &str) -> Result<RuleSet, InvalidRules> {
        let is_json = self.path.extension().is_some_and(|extension| extension == "json");
        let set = if is_json { RuleSet::from_json(text) } else { RuleSet::from_toml(text) };
        set.map_err(|error| self.in_file(&error))
    }

    fn read(&self) -> Result<String, InvalidRules> {
        let path: &Path = &self.path;
        let read = fs::metadata(path).and_then(|metadata| {
            if metadata.len() > MAX_BYTES {
                return Err(std::io::Error::other("the file has over 16 MiB"));
            }
            fs::read_to_string(path)
        });
        read.map_err(|error| self.in_file(&error))
    }
}
