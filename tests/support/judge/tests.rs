//! The judge objects to each breach, and to nothing else.

use std::time::Duration;

use super::*;

const SECOND: u64 = 1_000_000;

fn limit(algorithm: Algorithm) -> Limit {
    Limit::new("judged", algorithm, 10, Duration::from_secs(1)).expect("valid")
}

fn judge(algorithm: Algorithm) -> Judge {
    Judge::new(&limit(algorithm), None)
}

/// A call that is decided at one time and starts at another.
fn booked(judge: &mut Judge, decided: u64, at: u64, units: u64) -> CallId {
    let (threshold, capacity) = (10, 10);
    let starts = (at, at);
    judge.admitted(JudgedCall { starts, decided, charged: units, threshold, capacity })
}

fn call(judge: &mut Judge, at: u64, units: u64) -> CallId {
    booked(judge, at, at, units)
}

/// Returns by how much a history of calls is above the limit.
fn over(algorithm: Algorithm, calls: &[(u64, u64)]) -> u64 {
    let mut judge = judge(algorithm);
    for (at, units) in calls {
        call(&mut judge, *at, *units);
    }
    judge.breaches().iter().map(|breach| breach.over).max().unwrap_or(0)
}

#[test]
fn a_trailing_period_holds_the_threshold() {
    let algorithm = Algorithm::Sliding;
    assert_eq!(over(algorithm, &[(0, 4), (SECOND - 1, 6), (SECOND, 4)]), 0);
    assert_eq!(over(algorithm, &[(0, 4), (SECOND - 1, 6), (SECOND - 1, 1)]), 1);
    assert_eq!(over(algorithm, &[(0, 4), (SECOND - 1, 6), (SECOND, 7)]), 3);
}

#[test]
fn a_window_begins_with_a_call() {
    let algorithm = Algorithm::Fixed;
    assert_eq!(over(algorithm, &[(5, 1), (SECOND + 4, 9), (SECOND + 5, 10)]), 0);
    assert_eq!(over(algorithm, &[(5, 1), (SECOND + 4, 10)]), 1);
    assert_eq!(over(algorithm, &[(5, 1), (SECOND + 5, 10), (2 * SECOND + 4, 2)]), 2);
}

/// Calls that have used nothing leave an empty window, which the next call may begin again.
#[test]
fn a_window_without_units_may_begin_again() {
    let mut judge = judge(Algorithm::Fixed);
    let first = call(&mut judge, 0, 5);
    judge.settled(first, 1, 0);
    call(&mut judge, SECOND / 2, 10);
    call(&mut judge, SECOND + SECOND / 2, 10);
    assert_eq!(judge.breaches(), []);
    call(&mut judge, 2 * SECOND, 1);
    assert_eq!(judge.breaches().len(), 1);
}

#[test]
fn a_window_of_the_calendar_begins_at_its_boundary() {
    let day = Duration::from_secs(86_400);
    let limit = Limit::new("judged", Algorithm::Fixed, 10, day).expect("valid");
    let hour = 3_600 * SECOND;
    for (minutes, boundary) in [(0, 24 * hour), (120, 22 * hour), (-60, 25 * hour)] {
        let mut judge = Judge::new(&limit, Some(minutes));
        call(&mut judge, boundary - 1, 10);
        call(&mut judge, boundary, 10);
        assert_eq!(judge.breaches(), [], "{minutes}");
        call(&mut judge, boundary + 1, 1);
        assert_eq!(judge.breaches().len(), 1, "{minutes}");
    }
}

#[test]
fn a_counter_weighs_the_window_before() {
    let algorithm = Algorithm::SlidingCounter;
    assert_eq!(over(algorithm, &[(0, 10), (SECOND + SECOND / 2, 5)]), 0);
    assert_eq!(over(algorithm, &[(0, 10), (SECOND + SECOND / 2, 6)]), 1);
    assert_eq!(over(algorithm, &[(0, 10), (SECOND - 1, 1)]), 1);
}

#[test]
fn a_bucket_holds_its_burst_and_refills() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket] {
        assert_eq!(over(algorithm, &[(0, 10), (SECOND / 10, 1), (SECOND / 5, 1)]), 0);
        assert_eq!(over(algorithm, &[(0, 10), (SECOND / 10 - 1, 1)]), 1);
        assert_eq!(over(algorithm, &[(0, 10), (SECOND / 2, 10)]), 5);
    }
}

#[test]
fn a_surplus_counts_and_is_not_judged() {
    for algorithm in [Algorithm::Sliding, Algorithm::TokenBucket] {
        let mut judge = judge(algorithm);
        let first = call(&mut judge, 0, 10);
        judge.settled(first, 1, 15);
        assert_eq!(judge.breaches(), []);
        call(&mut judge, SECOND / 2, 1);
        assert_eq!(judge.breaches().len(), 1, "{algorithm}");
    }
}

/// A call that starts later than it was decided counts when it starts.
#[test]
fn a_booked_call_counts_at_its_start() {
    let mut judge = judge(Algorithm::TokenBucket);
    let first = call(&mut judge, 0, 10);
    booked(&mut judge, 0, SECOND, 10);
    judge.settled(first, 1, 0);
    assert_eq!(judge.breaches(), []);
    call(&mut judge, SECOND, 10);
    assert_eq!(judge.breaches(), [Breach { at: SECOND, used: 20, over: 10 }]);
}

/// What may have started at any time of an interval is a breach only if it is one at each time.
#[test]
fn times_that_are_not_known_are_given_the_benefit_of_the_doubt() {
    let (threshold, capacity, decided) = (10, 10, 0);
    for algorithm in [Algorithm::Sliding, Algorithm::TokenBucket] {
        let mut judge = judge(algorithm);
        let charged = 6;
        let between =
            |from, upto| JudgedCall { starts: (from, upto), decided, charged, threshold, capacity };
        judge.admitted(between(0, SECOND / 2));
        judge.admitted(between(SECOND, 2 * SECOND));
        assert_eq!(judge.breaches(), []);
        judge.admitted(between(SECOND + 1, SECOND + SECOND / 20));
        judge.admitted(between(SECOND + 1, SECOND + SECOND / 20));
        assert!(!judge.breaches().is_empty(), "{algorithm}");
    }
}

#[test]
fn a_closed_key_admits_nothing() {
    let mut judge = judge(Algorithm::Sliding);
    judge.closed(5, 10);
    for at in [5, 10] {
        call(&mut judge, at, 1);
    }
    assert_eq!(judge.breaches(), []);
    call(&mut judge, 7, 1);
    assert_eq!(judge.breaches(), [Breach { at: 7, used: 1, over: 1 }]);
}

#[test]
fn exceptions_come_on_top() {
    let mut judge = judge(Algorithm::TokenBucket);
    call(&mut judge, 0, 10);
    judge.excepted(0, Exception::Refund { units: 3 });
    call(&mut judge, 0, 3);
    assert_eq!(judge.breaches(), []);
    judge.excepted(0, Exception::Lost);
    call(&mut judge, 0, 10);
    assert_eq!(judge.breaches(), []);
    call(&mut judge, 0, 1);
    assert_eq!(judge.breaches().len(), 1);
}

/// Two windows can be in a period whose calls started at unknown times.
#[test]
fn a_period_overlaps_two_windows() {
    let mut judge = judge(Algorithm::Fixed);
    let (threshold, capacity, decided, charged) = (10, 10, 0, 10);
    let starts = |at| (at, at + 1);
    for at in [SECOND, SECOND + SECOND / 2] {
        judge.admitted(JudgedCall { starts: starts(at), decided, charged, threshold, capacity });
    }
    assert_eq!(judge.breaches(), []);
    let at = SECOND + SECOND / 2;
    judge.admitted(JudgedCall { starts: starts(at), decided, charged, threshold, capacity });
    assert!(!judge.breaches().is_empty());
}
