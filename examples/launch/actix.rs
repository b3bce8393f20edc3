//! Starts `examples/actix.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    launch::example("examples-actix", "actix")
}
