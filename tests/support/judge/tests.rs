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

/// A call under a small limit fits before a call of the same moment under a larger one.
#[test]
fn calls_of_one_moment_may_have_been_decided_in_any_order() {
    for algorithm in [Algorithm::Fixed, Algorithm::Sliding, Algorithm::TokenBucket] {
        let mut judge = judge(algorithm);
        let mut admit = |charged, most| {
            let amounts =
                JudgedCall { starts: (0, 0), decided: 0, charged, threshold: most, capacity: most };
            judge.admitted(amounts);
            judge.breaches().len()
        };
        assert_eq!((admit(6, 10), admit(4, 5)), (0, 0), "{algorithm}");
        assert!(admit(1, 10) > 0, "{algorithm}");
        let mut judge = Judge::new(&limit(algorithm), None);
        call(&mut judge, 0, 6);
        let later =
            JudgedCall { starts: (1, 1), decided: 1, charged: 1, threshold: 5, capacity: 5 };
        judge.admitted(later);
        assert!(!judge.breaches().is_empty(), "{algorithm}");
    }
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

/// Two windows can be in a period whose calls started at unknown times, but not in the period after the first call.
#[test]
fn a_period_overlaps_two_windows() {
    let mut judge = judge(Algorithm::Fixed);
    let limit = limit(Algorithm::Fixed);
    let between =
        |judge: &mut Judge, at, units| judge.admitted_between(&limit, (at, at + 1), units);
    between(&mut judge, SECOND / 4, 1);
    between(&mut judge, SECOND, 9);
    assert_eq!(judge.breaches(), []);
    let mut early = judge.clone();
    between(&mut early, SECOND + SECOND / 8, 1);
    assert!(!early.breaches().is_empty());
    between(&mut judge, SECOND + SECOND / 2, 10);
    assert_eq!(judge.breaches(), []);
    between(&mut judge, SECOND + SECOND / 2, 2);
    assert!(!judge.breaches().is_empty());
}

/// A window can begin with a call that was dropped: it was charged, and its units went back.
#[test]
fn a_window_can_begin_unseen() {
    for (opened, is_breach) in [(0, false), (SECOND / 4, false), (SECOND / 2 + 1, true)] {
        let mut judge = judge(Algorithm::Fixed);
        judge.unseen((opened, opened));
        call(&mut judge, SECOND / 2, 10);
        call(&mut judge, SECOND + SECOND / 4, 10);
        let is_in_second = call(&mut judge, SECOND + SECOND / 2 - 1, 1);
        assert_eq!(judge.breaches().len(), 1, "the second window is full");
        judge.except_call(is_in_second);
        assert_eq!(!judge.breaches().is_empty(), is_breach, "{opened}");
    }
    let mut judge = judge(Algorithm::Fixed);
    judge.unseen((0, SECOND));
    call(&mut judge, SECOND / 2, 10);
    call(&mut judge, SECOND + SECOND / 4, 10);
    assert_eq!(judge.breaches(), []);
}

/// A call that may have started before the last period is not above a limit because of a surplus in that period.
#[test]
fn a_surplus_alone_is_no_breach() {
    let mut judge = judge(Algorithm::Sliding);
    let first = call(&mut judge, 0, 1);
    judge.settled(first, SECOND + 1, 30);
    judge.admitted_between(&limit(Algorithm::Sliding), (SECOND / 2, 2 * SECOND), 1);
    assert_eq!(judge.breaches(), []);
}

/// A settlement keeps the rate of the bucket, also if the settled call had a lower rate.
#[test]
fn a_surplus_drains_at_the_rate_in_force() {
    let mut judge = judge(Algorithm::TokenBucket);
    let slow = call(&mut judge, 0, 1);
    let (charged, starts, decided) = (9, (0, 0), 0);
    let fast = JudgedCall { starts, decided, charged, threshold: 20, capacity: 10 };
    judge.admitted(fast);
    judge.settled(slow, 1, 2);
    call(&mut judge, 11 * SECOND / 20, 10);
    assert_eq!(judge.breaches(), []);
    call(&mut judge, 11 * SECOND / 20, 1);
    assert_eq!(judge.breaches().len(), 1);
}

/// A call is promised the burst that was in force until then.
#[test]
fn a_burst_is_promised_from_its_first_call() {
    let mut judge = judge(Algorithm::TokenBucket);
    let (charged, decided, threshold) = (11, 0, 10);
    let starts = (0, 1);
    judge.admitted(JudgedCall { starts, decided, charged, threshold, capacity: 10 });
    let later = JudgedCall { starts: (3, 4), decided: 3, charged: 1, threshold, capacity: 20 };
    judge.admitted(later);
    assert_eq!(judge.breaches().len(), 1);
    judge.admitted(JudgedCall { charged: 9, ..later });
    assert_eq!(judge.breaches().len(), 2);
}

/// While a call is booked, its bucket is not full: what was given back in that time counts when the call starts.
#[test]
fn a_gift_counts_while_a_call_is_booked() {
    for (decided, is_breach) in [(SECOND / 2, false), (SECOND, true)] {
        let mut judge = judge(Algorithm::TokenBucket);
        call(&mut judge, 0, 5);
        judge.excepted(SECOND / 2, Exception::Refund { units: 1 });
        booked(&mut judge, decided, SECOND, 10);
        call(&mut judge, SECOND, 1);
        assert_eq!(!judge.breaches().is_empty(), is_breach, "{decided}");
    }
}

/// Units can go back to a new count after its first calls, although it was full before.
#[test]
fn units_of_a_lost_count_come_on_top_once_they_are_back() {
    let until = SECOND / 2;
    for (first, is_breach) in [(until, false), (until + 1, true)] {
        for skew in [0, 1] {
            let mut judge = judge(Algorithm::TokenBucket).with_skew(skew);
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

/// Processes write their calls as text.
#[test]
fn an_admitted_call_is_a_line() {
    let limit = limit(Algorithm::TokenBucket);
    let from = crate::history::machine_time();
    let call = AdmittedCall { used: 3, ..AdmittedCall::since(from, &limit, 7) };
    assert!(from > 0 && call.starts.0 <= call.starts.1);
    let text = format!("ready\n12\n{call}\n{call}\nadmitted 1 2\n");
    assert_eq!(AdmittedCall::parse_all(&text), [call, call]);
    let mut judge = judge(Algorithm::TokenBucket);
    judge.admitted_all(&[call, call]);
    assert_eq!(judge.breaches(), []);
    assert!(judge.objects_to_more(&limit, 5) && !judge.objects_to_more(&limit, 4));
}
