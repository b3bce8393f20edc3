//! Starts `examples/obedient_client.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    launch::example("examples-tower", "obedient_client")
}
