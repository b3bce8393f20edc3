//! The locks of the embedded store in every order in which threads can take them; a deadlock in any
//! of them fails a test. See `CONTRIBUTING.md` for how to run these.

use std::time::Duration;

use loom::sync::Arc;
use loom::thread::spawn;

use super::{Ask, Embedded, shard_of};
use crate::algorithm::Op;
use crate::clock::{Clock, VirtualClock};
use crate::decision::Source;
use crate::limit::Limit;

const ONCE: Limit = Limit::fixed("once", 1, Duration::from_secs(3600));

/// Three places, each in a shard of its own.
const A: u128 = 1 << 64;
const B: u128 = 2 << 64;
const C: u128 = 3 << 64;

/// One in the shard of `A`.
const BESIDE_A: u128 = A | 1;

fn store() -> Arc<Embedded> {
    let clock = VirtualClock::at(Duration::from_secs(1_800_000_000));
    Arc::new(Embedded::new(640, Clock::Virtual(clock)))
}

/// Charges all of these places at once, or none.
fn charge_all(store: &Embedded, places: &[u128]) -> bool {
    let asks: Vec<_> =
        places.iter().map(|place| Ask { limit: ONCE, place: *place, cost: 1 }).collect();
    store.apply_all_at(&asks, Source::Embedded).expect("some places").decision.allowed
}

fn charge(store: &Embedded, place: u128) -> bool {
    store.apply_at(place, Op::Decide, &ONCE, 1).allowed
}

fn is_charged(store: &Embedded, place: u128) -> bool {
    store.apply_at(place, Op::Peek, &ONCE, 1).remaining == 0
}

/// Each wants what the next one wants as well, and names it last.
#[test]
fn a_circle_of_calls_does_not_lock_itself_out() {
    assert_eq!([A, B, C, BESIDE_A].map(shard_of), [1, 2, 3, 1]);
    loom::model(|| {
        let store = store();
        let calls = [[A, B], [B, C], [C, A]].map(|places| {
            let store = Arc::clone(&store);
            spawn(move || charge_all(&store, &places))
        });
        let admitted = calls.map(|call| call.join().expect("no panic"));
        assert_eq!(admitted.iter().filter(|admitted| **admitted).count(), 1, "{admitted:?}");
        let charged = [A, B, C].iter().filter(|place| is_charged(&store, **place)).count();
        assert_eq!(charged, 2);
    });
}

#[test]
fn places_of_one_shard_are_locked_once() {
    loom::model(|| {
        let store = store();
        let other = Arc::clone(&store);
        let call = spawn(move || charge_all(&other, &[B, A, BESIDE_A]));
        let admitted = charge_all(&store, &[BESIDE_A, B]);
        assert_ne!(admitted, call.join().expect("no panic"));
        assert_ne!(admitted, is_charged(&store, A));
    });
}

/// Whoever sees one of the counts charged sees the other charged, whichever it asks for first.
#[test]
fn nobody_sees_half_a_charge() {
    loom::model(|| {
        let store = store();
        let call = {
            let store = Arc::clone(&store);
            spawn(move || assert!(charge_all(&store, &[A, B])))
        };
        let looks = [[A, B], [B, A]].map(|[first, second]| {
            let store = Arc::clone(&store);
            spawn(move || {
                let seen = is_charged(&store, first);
                assert!(!seen || is_charged(&store, second), "half a charge");
            })
        });
        for thread in looks.into_iter().chain([call]) {
            thread.join().expect("no panic");
        }
    });
}

/// A call of one limit comes between, or does not; the other limit is charged in the one case only.
#[test]
fn a_call_that_loses_one_count_takes_no_other() {
    loom::model(|| {
        let store = store();
        let (all, single) = (Arc::clone(&store), Arc::clone(&store));
        let all = spawn(move || charge_all(&all, &[A, B]));
        let single = spawn(move || charge(&single, B));
        let seen = is_charged(&store, A);
        let (all, single) = (all.join().expect("no panic"), single.join().expect("no panic"));
        assert_ne!(all, single, "both or none was admitted");
        assert_eq!(is_charged(&store, A), all);
        assert!(all || !seen, "charged for a moment");
        assert!(is_charged(&store, B));
    });
}
