//! The requests of the store, each as calls of scripts: alone, in batches, as lines, and over several hash slots; and
//! settlements, resets and rules.

pub(crate) mod batch;
pub(crate) mod births;
pub(crate) mod line;
pub(crate) mod rollback;
#[cfg(feature = "rules")]
pub(crate) mod rules;
#[cfg(feature = "rules")]
pub(crate) mod scan;
pub(crate) mod script_call;
pub(crate) mod segments;
pub(crate) mod settle;
