//! Starts `examples/operate/main.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    launch::example("examples-operate", "operate")
}
