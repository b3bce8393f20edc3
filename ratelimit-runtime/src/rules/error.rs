//! The error of invalid rules.

use std::fmt;

/// The error of rules with a mistake. Its text names the limit and the key of the rule, and in a file the line, and
/// says what to write.
#[derive(Clone, PartialEq, Eq)]
pub struct RuleSetError {
    message: String,
}

impl RuleSetError {
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        Self { message: message.to_string() }
    }
}

impl fmt::Display for RuleSetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for RuleSetError {}

crate::limit::debug_as_text!(RuleSetError);
