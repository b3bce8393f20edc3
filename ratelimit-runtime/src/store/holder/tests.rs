//! What the reply to a request says of units that were taken and released.

use super::state::HolderState;
use crate::algorithm::Receipt;

#[test]
fn a_call_that_is_admitted_has_stated_what_was_released_before() {
    let mut state = HolderState::new(1);
    state.set_hold(1_000_000);
    let receipt = Some(Receipt { birth: 0, place: 1 });
    let take = |state: &mut HolderState, pending| state.take(pending, 1, receipt, 5, [5, 6]).0;
    let pending = state.begin().expect("a request");
    let granted = take(&mut state, pending);
    let held = state.granted(1, granted);
    assert!(state.release(held) && state.is_dirty());
    assert_eq!(state.next_statement(), Some(0));

    let pending = state.begin().expect("a request");
    let granted = take(&mut state, pending);
    assert!(!state.is_dirty() && state.next_statement() > Some(0));
    // A unit that is released while a request is under way is not in it.
    let pending = state.begin().expect("a request");
    let held = state.granted(1, granted);
    assert!(state.release(held));
    take(&mut state, pending);
    assert_eq!((state.is_dirty(), state.next_statement()), (true, Some(0)));
}

/// Calls that begin together after a pause: the reply to the first one finds that the hold has ended.
#[test]
fn a_process_without_units_gives_up_no_request_when_its_hold_ends() {
    let mut state = HolderState::new(1);
    state.set_hold(1_000_000);
    let pending = state.begin().expect("a request");
    let receipt = Some(Receipt { birth: 0, place: 1 });
    let (granted, _) = state.take(pending, 1, receipt, 5, [5, 6]);
    let held = state.granted(1, granted);
    assert!(state.release(held));
    assert_eq!(state.lose_late(6), 0);

    let later = 2_000_000;
    let together = [(); 2].map(|()| state.begin().expect("a request"));
    for pending in together {
        let (granted, lost) = state.take(pending, 1, receipt, later, [later, later + 1]);
        assert!(lost == 0 && state.has(state.granted(1, granted)));
    }
    assert_eq!(state.units(), 2);
}
