//! The scripts of the store, which are the files of `lua/`: their texts, their arguments and their replies.

pub(crate) mod compose;
pub(crate) mod form;
pub(crate) mod program;
pub(crate) mod script;
