//! Starts `examples/outbound_client.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    launch::example("examples-tower", "outbound_client")
}
