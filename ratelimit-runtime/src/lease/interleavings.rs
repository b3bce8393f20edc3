//! Tries every order in which threads can spend, take and give back the units of a lease. CONTRIBUTING.md describes how
//! to run these tests.

use std::sync::Arc;
use std::time::Duration;

use loom::thread::spawn;

use super::ledger::{LeaseEntry, LeaseLedger};
use super::state::{LeaseState, LeaseTarget, UnspentUnits};
use crate::algorithm::{Outcome, Verdict};
use crate::background::WorkCount;
use crate::key::KeyId;
use crate::limit::Limit;
use crate::reply::Source;
use crate::store::{Charge, Reply};

const LEASING: Limit = Limit::fixed("leasing", 100, Duration::from_secs(3600)).lease(10);
const KEY: KeyId = KeyId::from_bits(0);

/// The time of the charge, by both clocks.
const NOW: u64 = 1_000_000;

struct Leased {
    ledger: LeaseLedger,
    target: Arc<LeaseTarget>,
}

impl Leased {
    /// Returns a ledger that holds units.
    fn new(units: u64) -> Arc<Self> {
        let (terms, count_name) = (*LEASING.terms(), Vec::new());
        let charge = Charge { terms, key_id: KEY, count_name, cost: 1, statement: None };
        let target = LeaseTarget::new(&LEASING, Arc::new(charge));
        let ledger = LeaseLedger::default();
        // A call that is dropped before the reply.
        drop(ledger.enter(KEY, &target, NOW, || WorkCount::default().begin()));
        let verdict = Verdict::Admitted;
        let reset_us = LEASING.terms().period_us();
        let outcome = Outcome { clock: NOW, verdict, remaining: 90, retry_us: 0, reset_us };
        let result = Ok(Reply::one(outcome, Source::Redis));
        let (_, excess) = ledger.change(KEY, |lease| lease.replied(units, NOW, NOW, result));
        assert!(excess.is_none());
        let step = |lease: &mut LeaseEntry| (lease.serve(NOW), lease.request(NOW));
        let (deliveries, request) = ledger.change(KEY, step);
        assert!(deliveries.is_empty() && request.is_none());
        Arc::new(Self { ledger, target })
    }

    /// Spends a unit. Returns how many that were.
    fn spend(&self) -> u64 {
        self.ledger.spend(KEY, LEASING.terms(), 1, NOW).map_or(0, |_| 1)
    }

    /// Takes back a unit that a waiter did not spend. Returns how many go to the store instead.
    fn put_back(&self) -> u64 {
        let target = Arc::clone(&self.target);
        let place = NOW + LEASING.terms().period_us();
        let rest = self.ledger.put_back(KEY, UnspentUnits { target, units: 1, at: NOW, place });
        rest.map_or(0, |rest| rest.units)
    }

    fn take(&self) -> u64 {
        self.ledger.change(KEY, LeaseState::take_unspent).map_or(0, |taken| taken.units)
    }

    fn take_all(&self) -> u64 {
        self.ledger.take_all().iter().map(|taken| taken.units).sum()
    }
}

#[test]
fn each_unit_is_spent_or_given_back_once() {
    loom::model(|| {
        let leased = Leased::new(2);
        // A waiter receives one of three units.
        assert_eq!(leased.spend(), 1);
        let steps = [Leased::spend, Leased::put_back, Leased::take];
        let threads = steps.map(|step| {
            let leased = Arc::clone(&leased);
            spawn(move || step(&leased))
        });
        let used: u64 = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
        assert_eq!(used + leased.take_all(), 2);
    });
}

/// Units that come back while the ledger shuts down go to the store, by either way.
#[test]
fn a_ledger_that_is_shut_down_keeps_nothing() {
    loom::model(|| {
        let leased = Leased::new(2);
        assert_eq!(leased.spend(), 1);
        let back = spawn({
            let leased = Arc::clone(&leased);
            move || leased.put_back()
        });
        leased.ledger.shut_down();
        let taken = leased.take_all();
        assert_eq!(taken + back.join().expect("no panic"), 2);
        assert_eq!(leased.take_all(), 0);
    });
}

#[test]
fn no_unit_of_a_count_that_was_reset_is_spent() {
    loom::model(|| {
        let leased = Leased::new(2);
        let call = spawn({
            let leased = Arc::clone(&leased);
            move || leased.spend()
        });
        leased.ledger.change(KEY, LeaseState::discard);
        assert_eq!(leased.spend() + leased.take_all(), 0);
        call.join().expect("no panic");
    });
}
