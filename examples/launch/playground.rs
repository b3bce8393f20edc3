//! Starts `examples/playground`.

use std::process::ExitCode;

fn main() -> ExitCode {
    launch::example("examples-axum", "playground")
}
