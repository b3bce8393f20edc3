//! The types that any room may return: the decision of a check, its rejection, errors, and the future of a
//! request.

mod answer;
mod decision;
mod error;
mod rejection;

pub use self::answer::Answer;
pub use self::decision::{Decision, Source};
pub use self::error::{BuildError, StoreError};
pub use self::rejection::{FromRejection, Rejection};
