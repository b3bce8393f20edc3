//! Starts `examples/tonic.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    launch::example("examples-tonic", "tonic")
}
