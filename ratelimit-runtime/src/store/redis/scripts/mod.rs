//! The scripts of the store, which are the files of `lua/`: their texts, their arguments and their replies.

pub(crate) mod program;
pub(crate) mod script;
