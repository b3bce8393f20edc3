//! The results that all modules can return: decisions, rejections, errors, and the future of an answer.

mod decision;
mod error;
mod rejection;

use std::pin::Pin;

pub use self::decision::{Decision, Source, Usage};
pub use self::error::{BuildError, Mistake, StoreError};
pub use self::rejection::{FromRejection, Rejection};

/// The future of a request to a store. Resolves to `Result<T, StoreError>`.
///
/// It borrows nothing and is `Send`. On the embedded store, it is ready at once.
pub type Answer<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;
