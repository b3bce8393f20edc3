//! Units that were granted to a call that is dropped, while no other call of its line is polled.

use ratelimit_runtime::Algorithm;

use crate::operation::{Cost, Operation};
use crate::pairs::{play, setup};

/// The third call drives the line and ends. Then the first is dropped, and nothing polls the second for a while.
#[test]
fn a_unit_of_a_dropped_call_is_back_once_its_line_is_empty() {
    let wait = |ticks| Operation::Wait { process: 0, cost: Cost::Units(1), ticks, acquires: false };
    let operations = [
        Operation::Check { process: 0, cost: Cost::Units(3) },
        wait(60),
        wait(60),
        wait(60),
        Operation::Pause { which: 0 },
        Operation::Pause { which: 1 },
        Operation::Advance { ticks: 41 },
        Operation::DropWaiting { which: 0 },
        // The last call has the place of the first.
        Operation::Pause { which: 0 },
    ];
    for algorithm in [Algorithm::Sliding, Algorithm::Fixed] {
        let setup = setup(algorithm, (3, 3), 40_000, 1_000);
        assert_eq!(play(&setup, &operations), [3, 3], "{algorithm}");
    }
}
