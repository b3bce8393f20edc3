//! This program, started by itself: memory and instructions are counted in processes of their own, which do
//! what `main` hands to them.

use std::process::Command;

/// This program, to be started with such words.
pub(crate) fn program() -> Command {
    Command::new(std::env::current_exe().expect("this program has a path"))
}
