//! Tries every order in which threads can add settlements to a lane while its sender ends or stops. CONTRIBUTING.md
//! describes how to run these tests.

use std::sync::Arc;
use std::time::Duration;

use loom::future::block_on;
use loom::thread::spawn;

use super::ReportedLosses;
use super::queue::{LaneId, SharedQueue};
use crate::algorithm::{Correction, OpeningChange, Receipt};
use crate::background::Job;
use crate::key::KeyId;
use crate::limit::Limit;
use crate::reply::StoreError;
use crate::store::{Charge, SettledCharge};

const HOURLY: Limit = Limit::fixed("hourly", 10, Duration::from_secs(3600));

/// Takes what the lane has, as `sender.rs` does, and sends it nowhere.
struct TestSender {
    queue: Arc<SharedQueue>,
    lane: LaneId,
}

impl Job for TestSender {
    fn abandon(&mut self) {
        let mut queue = self.queue.lock();
        let lost = queue.remove(self.lane);
        lost.iter().for_each(|_| queue.record_loss(None));
        drop(queue);
    }
}

fn settled() -> SettledCharge {
    let (terms, count_name) = (*HOURLY.terms(), Vec::new());
    let charge = Charge { terms, key_id: KeyId::from_bits(0), count_name, cost: 1, holder: None };
    let receipt = Receipt { birth: 1, place: 1 };
    let correction = Correction::settled(receipt, 1, 0);
    SettledCharge { charge: Arc::new(charge), correction, opening: OpeningChange::None }
}

/// Adds a settlement. If that starts a sender, runs it; or drops it if `stops`.
fn add(queue: &Arc<SharedQueue>, stops: bool) {
    let sender = |lane| TestSender { queue: Arc::clone(queue), lane };
    let added = queue.add(0, settled(), None, 0, sender);
    let Some(mut job) = added.unwrap_or_else(|_| panic!("the queue is full")) else { return };
    if stops {
        return;
    }
    loop {
        let taken = queue.lock().take(job.lane);
        if taken.is_empty() {
            return job.end();
        }
        taken.iter().for_each(|_| queue.lock().record_reply());
    }
}

/// Adds settlements in two threads. The sender of the first stops if `stops`. Returns how many were sent, and how many
/// were reported as lost.
fn add_in_threads(stops: bool) -> (u64, u64) {
    let queue = Arc::new(SharedQueue::default());
    let threads = [stops, false].map(|stops| {
        let queue = Arc::clone(&queue);
        spawn(move || add(&queue, stops))
    });
    for thread in threads {
        thread.join().expect("no panic");
    }
    // Completes only if no settlement is left without a sender.
    let lost = match block_on(queue.flushed(ReportedLosses::SinceLastFlush)) {
        Err(StoreError::SettlementsLost { lost, .. }) => lost,
        _ => 0,
    };
    (queue.lock().replies(), lost)
}

#[test]
fn no_settlement_is_left_without_a_sender() {
    loom::model(|| assert_eq!(add_in_threads(false), (2, 0)));
}

#[test]
fn a_sender_that_stops_leaves_no_settlement_behind() {
    loom::model(|| {
        let (sent, lost) = add_in_threads(true);
        assert_eq!(sent + lost, 2);
    });
}
