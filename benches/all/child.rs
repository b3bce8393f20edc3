//! Starts this program again: memory and waits are measured in separate processes.

use std::process::Command;

/// Returns the command that starts this program with these arguments.
pub(crate) fn program() -> Command {
    Command::new(std::env::current_exe().expect("this program has a path"))
}
