//! The lanes of corrections: their order, pauses and bounds; and counts of calls in flight after a panic.

use std::time::Duration;

use tokio::sync::oneshot;

use super::corrections::{Corrections, Kind, MAX_WAITING, PAUSE, Queueable, Sent};
use super::slots::{SlotCounts, SlotRequest};
use crate::algorithm::{BlockChange, Op};
use crate::key::KeyId;
use crate::limit::Limit;
use crate::reply::StoreError;
use crate::store::{Calls, Charge, Failure, Stated, Statement};

/// A number, the key, the kind, and whether something is left to correct.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Numbered(u32, u128, Kind, bool);

impl Queueable for Numbered {
    fn key_id(&self) -> KeyId {
        KeyId::from_bits(self.1)
    }

    fn kind(&self) -> Kind {
        self.2
    }

    fn block(&self) -> BlockChange {
        match self {
            Self(UNBLOCKS, ..) => BlockChange::Unblock,
            Self(_, _, Kind::Block, _) => BlockChange::BlockFor(1),
            Self(..) => BlockChange::None,
        }
    }

    fn is_due(&self, _: u64) -> bool {
        self.3
    }
}

/// The number of an unblock.
const UNBLOCKS: u32 = 1_000_000;

type Lanes = Corrections<Numbered>;

const SLOT: u16 = 7;

fn add(lanes: &mut Lanes, number: u32, key: u128, kind: Kind) -> Option<u32> {
    add_to(lanes, (SLOT, 0), Numbered(number, key, kind, true)).map(|lost| lost.0)
}

fn add_to(lanes: &mut Lanes, (slot, server): (u16, usize), it: Numbered) -> Option<Numbered> {
    lanes.add(slot, server, it, 0, &mut Vec::new())
}

/// Sends the next request at a real time. Returns the numbers of its corrections; those of a probe are none.
fn send(lanes: &mut Lanes, real: u64) -> Option<Vec<u32>> {
    let mut left = Vec::new();
    let (slot, sent) = lanes.next(0, real, &mut left)?;
    assert!(slot == SLOT && left.is_empty());
    let numbers = lanes.sent(SLOT).map(|it| it.0);
    Some(if sent == Sent::Probe { Vec::new() } else { numbers.collect() })
}

fn reply(lanes: &mut Lanes, result: &Result<(), Failure>, real: u64) -> Vec<u32> {
    let count = lanes.sent(SLOT).count();
    let done = lanes.replied(SLOT, vec![result.clone(); count], real);
    done.into_iter().map(|(it, _)| it.0).collect()
}

fn refused() -> Result<(), Failure> {
    Err(Failure::NotExecuted(StoreError::ShuttingDown))
}

#[test]
fn blocks_and_what_callers_wait_for_pass_other_corrections() {
    let mut lanes = Lanes::default();
    add(&mut lanes, 0, 1, Kind::GiveBack);
    add(&mut lanes, 1, 2, Kind::Settlement);
    add(&mut lanes, 2, 1, Kind::Block);
    add(&mut lanes, 3, 3, Kind::Awaited);
    // These come after a correction of their key.
    add(&mut lanes, 4, 2, Kind::Awaited);
    add(&mut lanes, 5, 2, Kind::Block);
    add(&mut lanes, 6, 1, Kind::Block);
    assert_eq!(send(&mut lanes, 0), Some(vec![2, 3, 6, 0, 1, 4, 5]));
    assert_eq!(send(&mut lanes, 0), None, "one request is pending");
    // What is sent can come back, so it is passed neither.
    add(&mut lanes, 7, 2, Kind::Awaited);
    assert_eq!(reply(&mut lanes, &refused(), 0), [3, 4], "callers receive the error");
    assert_eq!(send(&mut lanes, PAUSE), Some(vec![2, 6, 5, 0, 1, 7]));
    assert_eq!(reply(&mut lanes, &Ok(()), PAUSE).len(), 6);
    assert!(lanes.is_empty());
}

#[test]
fn a_lane_pauses_and_probes() {
    let mut lanes = Lanes::default();
    add(&mut lanes, 0, 1, Kind::GiveBack);
    add(&mut lanes, 1, 2, Kind::GiveBack);
    let silence = Err(Failure::NoReply(StoreError::ShuttingDown));
    assert_eq!(send(&mut lanes, 0), Some(vec![0, 1]));
    assert_eq!(reply(&mut lanes, &silence, 10), [0, 1]);
    assert!(lanes.is_empty(), "nothing is sent again");

    add(&mut lanes, 2, 1, Kind::GiveBack);
    assert_eq!(send(&mut lanes, 10), Some(vec![2]));
    add(&mut lanes, 3, 1, Kind::GiveBack);
    assert_eq!(reply(&mut lanes, &silence, 10), [2]);
    assert_eq!((send(&mut lanes, 10), lanes.next_wake()), (None, Some(PAUSE + 10)));
    // A caller does not wait for the end of the pause.
    add(&mut lanes, 4, 9, Kind::Awaited);
    assert_eq!(send(&mut lanes, 20), Some(vec![4]));
    assert_eq!(reply(&mut lanes, &silence, 20), [4]);
    let [first, second, third] = [1, 2, 3].map(|pauses| pauses * PAUSE + 20);
    assert_eq!((send(&mut lanes, PAUSE), lanes.next_wake()), (None, Some(first)));
    assert_eq!(send(&mut lanes, first), Some(vec![]), "a probe");
    assert_eq!(reply(&mut lanes, &refused(), first), [0; 0]);
    assert_eq!(send(&mut lanes, second), Some(vec![]), "the probe was not sent");
    assert_eq!(reply(&mut lanes, &Ok(()), second), [0; 0]);
    assert_eq!(send(&mut lanes, second), Some(vec![3]));
    assert_eq!(reply(&mut lanes, &refused(), second), [0; 0]);
    assert_eq!((send(&mut lanes, second), lanes.next_wake()), (None, Some(third)));
}

/// A user without the rights for one key, whose correction comes first.
#[test]
fn a_refusal_shows_that_the_server_replies() {
    let mut lanes = Lanes::default();
    let silence = Err(Failure::NoReply(StoreError::ShuttingDown));
    add(&mut lanes, 0, 1, Kind::GiveBack);
    assert_eq!(send(&mut lanes, 0), Some(vec![0]));
    add(&mut lanes, 1, 1, Kind::GiveBack);
    add(&mut lanes, 2, 2, Kind::GiveBack);
    reply(&mut lanes, &silence, 0);
    assert_eq!(send(&mut lanes, PAUSE), Some(vec![]), "a probe");
    let error = StoreError::Server { code: "NOPERM".into(), message: "".into() };
    reply(&mut lanes, &Err(Failure::NotExecuted(error)), PAUSE);
    assert_eq!(send(&mut lanes, 2 * PAUSE), Some(vec![1, 2]));
}

#[test]
fn a_full_lane_drops_give_backs_first() {
    let mut lanes = Lanes::default();
    let full = MAX_WAITING as u32;
    for number in 0..full {
        let kind = if number == 2 { Kind::GiveBack } else { Kind::Settlement };
        assert_eq!(add(&mut lanes, number, 1, kind), None);
    }
    assert_eq!(add(&mut lanes, full, 1, Kind::GiveBack), Some(full));
    assert_eq!(add(&mut lanes, full + 1, 1, Kind::Settlement), Some(2));
    assert_eq!(add(&mut lanes, full + 2, 1, Kind::Settlement), Some(full + 2));
    assert_eq!(add(&mut lanes, full + 3, 1, Kind::Awaited), Some(full + 3));
    // Blocks have places of their own, and so has another server.
    assert_eq!(add(&mut lanes, full + 4, 1, Kind::Block), None);
    assert_eq!(add_to(&mut lanes, (8, 1), Numbered(0, 1, Kind::GiveBack, true)), None);
    let sent = send(&mut lanes, 0).expect("a request");
    assert_eq!(sent[..3], [full + 4, 0, 1]);
    assert_eq!(reply(&mut lanes, &Ok(()), 0).len(), sent.len());
    assert_eq!(add(&mut lanes, full + 5, 1, Kind::Settlement), None, "there are places again");
    assert_eq!(lanes.drain().len(), MAX_WAITING - 63 + 1 + 1);
    assert!(lanes.is_empty());
}

#[test]
fn lanes_begin_anew_after_a_panic() {
    let mut lanes = Lanes::default();
    add(&mut lanes, 0, 1, Kind::GiveBack);
    add_to(&mut lanes, (8, 0), Numbered(1, 1, Kind::GiveBack, true));
    send(&mut lanes, 0).expect("a request");
    lanes.begin_anew(5);
    assert_eq!(lanes.next(0, 5, &mut Vec::new()), Some((8, Sent::Corrections)));
    assert_eq!(lanes.next(0, 5, &mut Vec::new()), None, "one request of a lane is pending");
    assert_eq!(reply(&mut lanes, &Ok(()), 5), [0]);
}

#[test]
fn what_has_nothing_left_to_correct_is_not_sent() {
    let mut lanes = Lanes::default();
    add_to(&mut lanes, (SLOT, 0), Numbered(0, 1, Kind::GiveBack, false));
    let mut left = Vec::new();
    assert_eq!(lanes.next(0, 0, &mut left), None);
    assert!(left.len() == 1 && lanes.is_empty());
}

#[test]
fn a_block_that_waits_is_not_sent_after_an_unblock() {
    let mut lanes = Lanes::default();
    add(&mut lanes, 0, 1, Kind::Block);
    assert_eq!(send(&mut lanes, 0), Some(vec![0]));
    add(&mut lanes, 1, 1, Kind::Block);
    add(&mut lanes, 2, 2, Kind::Block);
    let (unblock, mut left) = (Numbered(UNBLOCKS, 1, Kind::Awaited, true), Vec::new());
    assert_eq!(lanes.add(SLOT, 0, unblock, 0, &mut left), None);
    assert_eq!(left.iter().map(|it| it.0).collect::<Vec<_>>(), [1]);
    // What was sent comes back, and is followed by the unblock.
    assert_eq!(reply(&mut lanes, &refused(), 0), [0; 0]);
    assert_eq!(send(&mut lanes, 10), None, "nothing passes a block of its key");
    assert_eq!(send(&mut lanes, PAUSE), Some(vec![0, 2, UNBLOCKS]));
}

#[test]
fn a_count_whose_request_was_lost_by_a_panic_is_stated_again() {
    const NIGHTLY: Limit = Limit::in_flight("nightly", 1).hold(Duration::from_secs(30));
    let terms = *NIGHTLY.terms();
    let statement = Some(Statement { hold_us: 30_000_000, ..Statement::default() });
    let key_id = KeyId::new(&terms.identity, 7);
    let charge = Charge { terms, key_id, count_name: Vec::new(), cost: 1, statement };
    let mut counts = SlotCounts::default();
    let due = |counts: &mut SlotCounts, real| counts.due(real, real, |_| 0);
    let (reply_to, mut reply) = oneshot::channel();
    counts.want(Calls::one(Op::ACQUIRE, vec![charge.into()].into()), reply_to, 0);
    let lost = due(&mut counts, 0);
    assert!(matches!(lost[..], [SlotRequest::Take(_)]));
    drop(lost);
    assert!(reply.try_recv().is_err(), "its caller learns of it");
    assert!(due(&mut counts, 1).is_empty(), "a reply is expected");

    counts.begin_anew(2);
    let requests = due(&mut counts, 2);
    let [SlotRequest::State(stated)] = &requests[..] else { panic!("one statement") };
    let seq = stated[0].statement.expect("a statement").seq;
    assert!(seq > 0 && due(&mut counts, 3).is_empty(), "one request at a time");
    let granted = Stated { granted: 0, epoch: 1, is_lost: false };
    counts.stated(stated, vec![Ok(granted)], (4, 4));
    assert!(counts.is_empty());
}
