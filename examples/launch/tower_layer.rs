//! Starts `examples/tower_layer.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    launch::example("examples-tower", "tower_layer")
}
