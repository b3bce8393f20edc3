//! Starts `examples/poem.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    launch::example("examples-poem", "poem")
}
