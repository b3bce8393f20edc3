//! Starts `examples/paced_stream.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    launch::example("examples-tower", "paced_stream")
}
