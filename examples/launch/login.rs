//! Starts `examples/login.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    launch::example("examples-axum", "login")
}
