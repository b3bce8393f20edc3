//! Starts `examples/axum.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    launch::example("examples-axum", "axum")
}
