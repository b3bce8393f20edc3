//! The judge objects to each breach, and to nothing else.

use std::time::Duration;

use ratelimit_runtime::Align;

use super::*;
use Algorithm::{Fixed, LeakyBucket, Sliding, SlidingCounter, TokenBucket};

const SECOND: u64 = 1_000_000;
const HALF: u64 = SECOND / 2;
const QUARTER: u64 = SECOND / 4;

fn limit(algorithm: Algorithm) -> Limit {
    crate::limits::limit("judged", algorithm, 10, Duration::from_secs(1))
}

fn call(judge: &mut Judge, at: u64, units: u64) -> CallId {
    judge.admitted_between(&limit(TokenBucket), (at, at), units)
}

/// What happens in a history. Times are in microseconds; a call is named by its place among the calls.
#[derive(Clone, Copy, Debug)]
enum Happens {
    Call(u64, u64),
    // Decided at the first time, and started at the second.
    Booked(u64, u64, u64),
    // Started between two times.
    Between(u64, u64, u64),
    // Admitted under this threshold and capacity.
    Under(u64, u64, (u64, u64)),
    // A call has used so many units, as was known at a time.
    Used(usize, u64, u64),
    Refund(u64, u64),
    Lost(u64),
    Unseen(u64, u64),
}

use Happens::{Between, Booked, Call, Lost, Refund, Under, Unseen, Used};

/// A history that keeps the promise, what happens then, and by how many units that breaks it.
type Row<'a> = (Algorithm, &'a [Happens], &'a [Happens], u64);

/// Plays a part of a history. Returns by how much all of it is above the limit.
fn over(judge: &mut Judge, calls: &mut Vec<CallId>, history: &[Happens]) -> u64 {
    for happens in history {
        let mut admit = |starts, decided, charged, (threshold, capacity)| {
            let call = JudgedCall { starts, decided, charged, threshold, capacity };
            calls.push(judge.admitted(call));
        };
        match *happens {
            Call(at, units) => admit((at, at), at, units, (10, 10)),
            Booked(decided, at, units) => admit((at, at), decided, units, (10, 10)),
            Between(from, upto, units) => admit((from, upto), from, units, (10, 10)),
            Under(at, units, amounts) => admit((at, at), at, units, amounts),
            Used(index, at, used) => judge.settled(calls[index], at, used),
            Refund(at, units) => judge.excepted(at, Exception::Refund(units)),
            Lost(at) => judge.excepted(at, Exception::Lost),
            Unseen(from, upto) => judge.unseen((from, upto)),
        }
    }
    judge.breaches().iter().map(|breach| breach.over).max().unwrap_or(0)
}

fn assert_judged(rows: &[Row<'_>]) {
    for (algorithm, kept, then, broken) in rows {
        let (mut judge, mut calls) = (Judge::new(&limit(*algorithm), None), Vec::new());
        assert_eq!(over(&mut judge, &mut calls, kept), 0, "{algorithm}: {kept:?}");
        let over = over(&mut judge, &mut calls, then);
        assert_eq!(over, *broken, "{algorithm}: {kept:?}, then {then:?}");
    }
}

#[test]
fn a_period_a_window_and_a_bucket_hold_their_units() {
    assert_judged(&[
        (Sliding, &[Call(0, 4), Call(SECOND - 1, 6)], &[Call(SECOND - 1, 1)], 1),
        (Sliding, &[Call(0, 4), Call(SECOND - 1, 6)], &[Call(SECOND, 7)], 3),
        (Sliding, &[Call(0, 4), Call(SECOND - 1, 6), Call(SECOND, 4)], &[], 0),
        // A window begins with a call. It is empty if its calls have used nothing, and may begin again.
        (Fixed, &[Call(5, 1), Call(SECOND + 4, 9), Call(SECOND + 5, 10)], &[], 0),
        (Fixed, &[Call(5, 1)], &[Call(SECOND + 4, 10)], 1),
        (Fixed, &[Call(5, 1), Call(SECOND + 5, 10)], &[Call(2 * SECOND + 4, 2)], 2),
        (
            Fixed,
            &[Call(0, 5), Used(0, 1, 0), Call(HALF, 10), Call(SECOND + HALF, 10)],
            &[Call(2 * SECOND, 1)],
            1,
        ),
        // A counter weighs the window before.
        (SlidingCounter, &[Call(0, 10), Call(SECOND + HALF, 5)], &[Call(SECOND + HALF, 1)], 1),
        (SlidingCounter, &[Call(0, 10)], &[Call(SECOND - 1, 1)], 1),
    ]);
    for algorithm in [TokenBucket, LeakyBucket] {
        assert_judged(&[
            (algorithm, &[Call(0, 10), Call(SECOND / 10, 1), Call(SECOND / 5, 1)], &[], 0),
            (algorithm, &[Call(0, 10)], &[Call(SECOND / 10 - 1, 1)], 1),
            (algorithm, &[Call(0, 10)], &[Call(HALF, 10)], 5),
        ]);
    }
}

/// A call under a small limit fits before a call of the same moment under a larger one.
#[test]
fn calls_of_one_moment_may_have_been_decided_in_any_order() {
    for algorithm in [Fixed, Sliding, TokenBucket] {
        let together = [Call(0, 6), Under(0, 4, (5, 5))];
        assert_judged(&[
            (algorithm, &together, &[Call(0, 1)], 1),
            (algorithm, &[Call(0, 6)], &[Under(1, 1, (5, 5))], 2),
        ]);
    }
}

#[test]
fn a_window_of_the_calendar_begins_at_its_boundary() {
    let (day, hour) = (Duration::from_secs(86_400), 3_600 * SECOND);
    for (minutes, boundary) in [(0, 24 * hour), (120, 22 * hour), (-60, 25 * hour)] {
        let mut judge = Judge::new(&Limit::fixed("judged", 10, day), Some(minutes));
        call(&mut judge, boundary - 1, 10);
        call(&mut judge, boundary, 10);
        assert_eq!(judge.breaches(), [], "{minutes}");
        call(&mut judge, boundary + 1, 1);
        assert_eq!(judge.breaches().len(), 1, "{minutes}");
    }
    let limit = Limit::fixed("judged", 10, day).align(Align::zone("Europe/Berlin"));
    // The 25 October 2026 has 25 hours.
    let midnight = 1_792_879_200 * SECOND;
    let mut judge = Judge::new(&limit, None);
    for hours in [0, 25] {
        call(&mut judge, midnight + hours * hour - 1, 5);
        call(&mut judge, midnight + hours * hour, 5);
    }
    assert_eq!(judge.breaches(), []);
    call(&mut judge, midnight + 49 * hour - 1, 6);
    assert_eq!(judge.breaches().len(), 1);
}

/// A surplus counts from its settlement, drains at the rate in force, and is no breach by itself.
#[test]
fn a_surplus_counts_and_is_not_judged() {
    assert_judged(&[
        (Sliding, &[Call(0, 10), Used(0, 1, 15)], &[Call(HALF, 1)], 6),
        (TokenBucket, &[Call(0, 10), Used(0, 1, 15)], &[Call(HALF, 1)], 1),
        // A call that may have started before the last period.
        (Sliding, &[Call(0, 1), Used(0, SECOND + 1, 30), Between(HALF, 2 * SECOND, 1)], &[], 0),
        // The settled call had a lower rate.
        (
            TokenBucket,
            &[Call(0, 1), Under(0, 9, (20, 10)), Used(0, 1, 2), Call(11 * SECOND / 20, 10)],
            &[Call(11 * SECOND / 20, 1)],
            1,
        ),
    ]);
}

/// A call that starts later than it was decided counts when it starts. Until then, its bucket is not full: what was
/// given back in that time counts.
#[test]
fn a_booked_call_counts_at_its_start() {
    assert_judged(&[
        (
            TokenBucket,
            &[Call(0, 10), Booked(0, SECOND, 10), Used(0, 1, 0)],
            &[Call(SECOND, 10)],
            10,
        ),
        (
            TokenBucket,
            &[Call(0, 5), Refund(HALF, 1), Booked(HALF, SECOND, 10), Call(SECOND, 1)],
            &[],
            0,
        ),
        (TokenBucket, &[Call(0, 5), Refund(HALF, 1), Call(SECOND, 10)], &[Call(SECOND, 1)], 1),
    ]);
}

/// What may have started at any time of an interval is a breach only if it is one at each time.
#[test]
fn times_that_are_not_known_are_given_the_benefit_of_the_doubt() {
    let late = Between(SECOND + 1, SECOND + SECOND / 20, 6);
    let kept = [Between(0, HALF, 6), Between(SECOND, 2 * SECOND, 6)];
    assert_judged(&[(Sliding, &kept, &[late, late], 2), (TokenBucket, &kept, &[late, late], 2)]);
    // Two windows can be in a period whose calls started at unknown times, but not in the one after the first call.
    let between = |at, units| Between(at, at + 1, units);
    let early = [between(QUARTER, 1), between(SECOND, 9)];
    let two = [early[0], early[1], between(SECOND + HALF, 10)];
    assert_judged(&[
        (Fixed, &early, &[between(SECOND + SECOND / 8, 1)], 1),
        (Fixed, &two, &[between(SECOND + HALF, 2)], 1),
    ]);
}

#[test]
fn exceptions_come_on_top() {
    let refunded = [Call(0, 10), Refund(0, 3), Call(0, 3), Lost(0), Call(0, 10)];
    assert_judged(&[(TokenBucket, &refunded, &[Call(0, 1)], 1)]);
}

/// A window can begin with a call that was dropped: it was charged, and its units went back.
#[test]
fn a_window_can_begin_unseen() {
    let (first, second) = (Call(HALF, 10), Call(SECOND + QUARTER, 10));
    let third = [Call(SECOND + HALF - 1, 1)];
    assert_judged(&[
        (Fixed, &[Unseen(0, 0), first, second], &third, 1),
        (Fixed, &[Unseen(QUARTER, QUARTER), first, second], &third, 1),
        (Fixed, &[Unseen(HALF + 1, HALF + 1), first], &[second], 10),
        (Fixed, &[Unseen(0, SECOND), first, second], &[], 0),
    ]);
}

/// A call is promised the burst that was in force until then.
#[test]
fn a_burst_is_promised_from_its_first_call() {
    let mut judge = Judge::new(&limit(TokenBucket), None);
    judge.admitted_between(&limit(TokenBucket), (0, 1), 11);
    let (starts, decided, charged, threshold, capacity) = ((3, 4), 3, 1, 10, 20);
    let later = JudgedCall { starts, decided, charged, threshold, capacity };
    judge.admitted(later);
    assert_eq!(judge.breaches().len(), 1);
    judge.admitted(JudgedCall { charged: 9, ..later });
    assert_eq!(judge.breaches().len(), 2);
}

/// Units can go back to a new count after its first calls, although it was full before.
#[test]
fn units_of_a_lost_count_come_on_top_once_they_are_back() {
    let until = SECOND / 2;
    for (first, is_breach) in [(until, false), (until + 1, true)] {
        for skew in [0, 1] {
            let mut judge = Judge::new(&limit(TokenBucket), None).with_skew(skew);
            judge.excepted(0, Exception::Lost);
            judge.excepted(0, Exception::Return { units: 3, until });
            call(&mut judge, first + 2 * skew, 10);
            call(&mut judge, first + 2 * skew, 3);
            assert_eq!(!judge.breaches().is_empty(), is_breach, "{first}");
            call(&mut judge, first + 2 * skew, 1);
            assert!(!judge.breaches().is_empty(), "{first}");
        }
    }
}
