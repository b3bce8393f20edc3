//! Starts `examples/outbound_layer.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    launch::example("examples-tower", "outbound_layer")
}
