//! The results that all modules can return: decisions, rejections, errors, and the future of an answer.

mod answer;
mod decision;
mod error;
mod rejection;

pub use self::answer::Answer;
pub use self::decision::{Decision, Source, Usage};
pub use self::error::{BuildError, Mistake, StoreError};
pub use self::rejection::{FromRejection, Rejection};
