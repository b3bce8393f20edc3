//! What this program does when it has started itself: memory and instructions are counted in processes
//! of their own.

use std::process::Command;

use crate::{instructions, memory};

/// Whether this is such a process; it has done what it was started for then.
pub(crate) fn asked(words: &[&str]) -> bool {
    match words {
        ["memory-of", name, most] => memory::child(name, most.parse().expect("a number")),
        ["instructions-of", name, calls] => {
            instructions::child(name, calls.parse().expect("a number"));
        }
        _ => return false,
    }
    true
}

/// This program, to be started with such words.
pub(crate) fn program() -> Command {
    Command::new(std::env::current_exe().expect("this program has a path"))
}
