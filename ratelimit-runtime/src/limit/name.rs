//! The name of a limit.

use std::borrow::Borrow;
use std::fmt;

/// The name of a limit, as it appears in Redis keys, rejections, logs and metrics.
///
/// ```
/// use std::time::Duration;
/// use ratelimit_runtime::Limit;
///
/// const LOGIN: Limit = Limit::sliding("login", 5, Duration::from_secs(60));
/// assert_eq!(LOGIN.name(), "login");
/// ```
// Not `Copy`, so that a later version can own names that are known only at run time.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Name(&'static str);

impl Name {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// Returns the text of the name.
    #[must_use]
    pub const fn as_str(&self) -> &str {
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
