//! Prints a script of the Redis store for `redis-cli --eval`; see ARCHITECTURE.md.

use std::process::ExitCode;

use ratelimit_runtime::__private::script_text;

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    if let Some(text) = script_text(&name) {
        print!("{text}");
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "{name:?} is not a script. The scripts are sliding, fixed, sliding_counter, bucket, leased_bucket, \
         slots, all, batch, batch_of_node, correct"
    );
    ExitCode::FAILURE
}
