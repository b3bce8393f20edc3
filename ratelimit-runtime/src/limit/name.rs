//! The name of a limit.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use once_cell::sync::Lazy;

use super::LimitError;

/// The most names that a process makes at run time.
const MOST_NAMES: usize = 10_000;

/// The names that were made at run time.
static NAMES: Lazy<Mutex<NameTable>> = Lazy::new(Mutex::default);

/// The names that other processes have announced. They have places of their own: any number can be announced.
#[cfg(feature = "rules")]
static ANNOUNCED: Lazy<Mutex<NameTable>> = Lazy::new(Mutex::default);

/// The names of the trials of rules, which take no places of other names either.
static TRIALS: Lazy<Mutex<NameTable>> = Lazy::new(Mutex::default);

/// The end of the name of a trial.
const OF_TRIAL: &str = ":trial";

/// The most bytes of an announced name.
#[cfg(feature = "rules")]
const MAX_ANNOUNCED: usize = 1_000;

type NameTable = HashSet<&'static str>;

/// The name of a limit, as it appears in Redis keys, rejections, logs and metrics.
///
/// ```
/// use std::time::Duration;
/// use ratelimit_runtime::Limit;
///
/// const LOGIN: Limit = Limit::sliding("login", 5, Duration::from_secs(60));
/// assert_eq!(LOGIN.name(), "login");
/// ```
// `Copy`, so that limits are `Copy`, and `&LOGIN` lives as long as the program.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Name(&'static str);

impl Name {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// Makes a name at run time. The process keeps each such name once, for as long as it runs, so it makes 10,000
    /// different names at most.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_runtime::{Algorithm, Limit, Name};
    ///
    /// let service = String::from("billing");
    /// let name = Name::kept(&format!("{service}.export"))?;
    /// let limit = Limit::new(name.as_str(), Algorithm::Fixed, 5, Duration::from_secs(60))?;
    /// # Ok::<(), ratelimit_runtime::LimitError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// On an empty name; on the 10,001st different name.
    pub fn kept(name: &str) -> Result<Self, LimitError> {
        if name.is_empty() {
            return Err(LimitError::NO_NAME);
        }
        Self::keep(name, &NAMES)
    }

    /// Makes a name that another process has announced.
    #[cfg(feature = "rules")]
    pub(crate) fn announced(name: &str) -> Result<Self, LimitError> {
        if name.is_empty() || name.len() > MAX_ANNOUNCED {
            return Err(LimitError::NO_NAME);
        }
        Self::keep(name, &ANNOUNCED)
    }

    /// Makes the name of the trial of the limit with a name.
    pub(crate) fn of_trial(name: &Self) -> Result<Self, LimitError> {
        Self::keep(&format!("{name}{OF_TRIAL}"), &TRIALS)
    }

    /// Returns whether a trial can have this name.
    pub(crate) fn is_of_trial(&self) -> bool {
        self.0.ends_with(OF_TRIAL)
    }

    fn keep(name: &str, names: &Mutex<NameTable>) -> Result<Self, LimitError> {
        let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = names.get(name) {
            return Ok(Self(kept));
        }
        if names.len() >= MOST_NAMES {
            return Err(LimitError(
                "a process makes 10,000 names of limits at most: what is counted separately, such as a \
                 user, is the key of a limit and not its name",
            ));
        }
        let kept: &'static str = String::from(name).leak();
        names.insert(kept);
        Ok(Self(kept))
    }

    /// Returns the text of the name.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.0, f)
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        self.0
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        self.0
    }
}

impl PartialEq<str> for Name {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}

impl PartialEq<&str> for Name {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}
