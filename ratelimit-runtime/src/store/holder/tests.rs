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
fn a_process_gives_up_no_request_that_began_after_its_hold() {
    for is_released in [true, false] {
        let mut state = HolderState::new(1);
        state.set_hold(1_000_000);
        let pending = state.begin().expect("a request");
        let receipt = Some(Receipt { birth: 0, place: 1 });
        let (granted, _) = state.take(pending, 1, receipt, 5, [5, 6]);
        let held = state.granted(1, granted);
        assert!(!is_released || state.release(held));
        assert_eq!(state.lose_late(6), 0);

        let later = 2_000_000;
        let together = [(); 2].map(|()| state.begin().expect("a request"));
        let mut all_lost = 0;
        for pending in together {
            let (granted, lost) = state.take(pending, 1, receipt, later, [later, later + 1]);
            assert!(state.has(state.granted(1, granted)));
            all_lost += lost;
        }
        assert_eq!((all_lost, state.units()), (u64::from(!is_released), 2));
    }
}

/// The store executes the second request after it has forgotten the first one. Then a pending statement reports one
/// released unit: the store would free the unit of the second request.
#[test]
fn a_reply_after_the_hold_takes_no_unit_that_another_statement_releases() {
    let mut state = HolderState::new(1);
    state.set_hold(1_000_000);
    let receipt = Some(Receipt { birth: 0, place: 1 });
    let [first, second] = [(); 2].map(|()| state.begin().expect("a request"));
    let (granted, _) = state.take(first, 1, receipt, 5, [5, 600_000]);
    let held = state.granted(1, granted);
    assert!(state.release(held));
    state.state(600_001);
    let fence = state.statement(1).fence;
    let (granted, _) = state.take(second, 1, receipt, 995_000, [500_000, 995_001]);
    let held = state.granted(1, granted);
    assert!(!state.has(held));
    assert!(state.statement(1).fence > fence, "the store frees what the request has taken");
}
