//! Starts `examples/opentelemetry.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    launch::example("examples-opentelemetry", "opentelemetry")
}
