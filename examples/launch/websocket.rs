//! Starts `examples/websocket.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    launch::example("examples-axum", "websocket")
}
