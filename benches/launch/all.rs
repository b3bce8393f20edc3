//! Starts `benches/all`.

use std::process::ExitCode;

fn main() -> ExitCode {
    launch::bench("benches")
}
