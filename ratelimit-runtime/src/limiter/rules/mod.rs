//! Rules in files and in Redis: what an operator changes about limits while the service runs.

mod feed;
mod file;
mod fleet;
mod shared;

pub(super) use self::feed::RuleFeed;
pub use self::feed::Rules;
pub use self::fleet::{AnnouncedLimit, AnnouncedProcess, KeysCursor, KeysPage};
pub use self::shared::{RuleChange, SharedRules};
