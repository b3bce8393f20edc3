//! Tries every order in which threads can take the locks of the store of this process; a deadlock in any of them
//! fails a test. CONTRIBUTING.md describes how to run these tests.

use std::time::Duration;

use loom::sync::Arc;
use loom::thread::spawn;

use super::{Local, shard_of};
use crate::algorithm::{Op, Outcome};
use crate::clock::{Clock, VirtualClock};
use crate::key::KeyId;
use crate::limit::Limit;
use crate::one_or_many::OneOrMany;
use crate::reply::Source;
use crate::store::{Calls, Charge};

const ONCE: Limit = Limit::fixed("once", 1, Duration::from_secs(3600));

/// Three counts, each in a shard of its own.
const A: KeyId = KeyId::from_bits(1 << 64);
const B: KeyId = KeyId::from_bits(2 << 64);
const C: KeyId = KeyId::from_bits(3 << 64);

/// A count in the shard of `A`.
const BESIDE_A: KeyId = KeyId::from_bits(A.bits() | 2);

fn store() -> Arc<Local> {
    let clock = VirtualClock::at(Duration::from_secs(1_800_000_000));
    Arc::new(Local::new(640, Clock::Virtual(clock)))
}

fn apply(store: &Local, op: Op, key_ids: &[KeyId]) -> Vec<Outcome> {
    let charge = |key_id: &KeyId| {
        let (terms, count_name) = (*ONCE.terms(), Vec::new());
        std::sync::Arc::new(Charge { terms, key_id: *key_id, count_name, cost: 1, statement: None })
    };
    let charges: Vec<_> = key_ids.iter().map(charge).collect();
    let calls = Calls::one(op, OneOrMany::from(charges));
    store.apply(&calls, Source::Embedded).outcomes.to_vec()
}

/// Charges all of these counts at once, or none. Returns whether they admitted the call.
fn charge_all(store: &Local, key_ids: &[KeyId]) -> bool {
    apply(store, Op::TAKE, key_ids).iter().all(Outcome::is_allowed)
}

fn charge(store: &Local, key_id: KeyId) -> bool {
    charge_all(store, &[key_id])
}

fn is_charged(store: &Local, key_id: KeyId) -> bool {
    apply(store, Op::Peek, &[key_id])[0].remaining == 0
}

/// Each call has two counts. Its second count is the first count of the next call.
#[test]
fn calls_that_share_counts_in_a_circle_do_not_deadlock() {
    assert_eq!([A, B, C, BESIDE_A].map(shard_of), [1, 2, 3, 1]);
    loom::model(|| {
        let store = store();
        let calls = [[A, B], [B, C], [C, A]].map(|key_ids| {
            let store = Arc::clone(&store);
            spawn(move || charge_all(&store, &key_ids))
        });
        let admitted = calls.map(|call| call.join().expect("no panic"));
        assert_eq!(admitted.iter().filter(|admitted| **admitted).count(), 1, "{admitted:?}");
        let charged = [A, B, C].iter().filter(|key_id| is_charged(&store, **key_id)).count();
        assert_eq!(charged, 2);
    });
}

#[test]
fn a_call_locks_each_shard_once() {
    loom::model(|| {
        let store = store();
        let other = Arc::clone(&store);
        let call = spawn(move || charge_all(&other, &[B, A, BESIDE_A]));
        let admitted = charge_all(&store, &[BESIDE_A, B]);
        assert_ne!(admitted, call.join().expect("no panic"));
        assert_ne!(admitted, is_charged(&store, A));
    });
}

/// A thread that observes one count charged observes the other charged, in either order.
#[test]
fn no_thread_observes_half_a_charge() {
    loom::model(|| {
        let store = store();
        let call = {
            let store = Arc::clone(&store);
            spawn(move || assert!(charge_all(&store, &[A, B])))
        };
        let observers = [[A, B], [B, A]].map(|[first, second]| {
            let store = Arc::clone(&store);
            spawn(move || {
                let seen = is_charged(&store, first);
                assert!(!seen || is_charged(&store, second), "half a charge");
            })
        });
        for thread in observers.into_iter().chain([call]) {
            thread.join().expect("no panic");
        }
    });
}

/// A concurrent call can take the unit of one count. The call of both counts is then rejected and charges neither.
#[test]
fn a_call_that_loses_one_count_charges_no_other() {
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
