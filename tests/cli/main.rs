//! The command `ratelimit`, as a program, on real servers.

mod doctor;
mod operator;
mod prove;
mod usage;

use std::process::{Command, Stdio};

/// Returns the command with these arguments, without a terminal.
fn ratelimit(arguments: &[&str]) -> Command {
    let mut command = support::example::ratelimit();
    command.args(arguments).stdin(Stdio::null());
    command
}
