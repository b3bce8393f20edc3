//! Starts `examples/operate.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    launch::example("examples-operate", "operate")
}
