//! The results that all modules can return: decisions, rejections, errors, and the future of an answer.

mod answer;
mod decision;
mod error;
mod mistake;
mod rejection;
mod usage;

pub use self::answer::Answer;
pub use self::decision::{Decision, Source};
pub use self::error::{BuildError, StoreError};
pub use self::mistake::Mistake;
pub use self::rejection::{FromRejection, Rejection};
pub use self::usage::Usage;
