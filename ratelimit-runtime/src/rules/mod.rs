//! Rules: what an operator changes about limits while the service runs. A rule names a limit, or one key of it.
//!
//! [`RulesInForce`] is the table of the rules in force of a limiter. It is pure: the limiter reads the rules and
//! replaces the table, and a check asks it once for each limit.

mod in_force;
#[cfg(all(test, loom))]
mod interleavings;
mod rule;
mod set;
mod table;
#[cfg(feature = "rules")]
mod text;

pub(crate) use self::in_force::RulesInForce;
pub use self::rule::{Rule, RuleSetError};
pub use self::set::RuleSet;
pub(crate) use self::table::{Asker, RuleTable, Ruled};
