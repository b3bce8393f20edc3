//! Starts `examples/prove/main.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    launch::example("examples-prove", "prove")
}
