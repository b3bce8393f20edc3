//! The forms of a sliding window in Redis: small rings, large rings and logs. The model, the embedded store and Redis
//! make the same decisions while a count changes its form.

mod random;

use std::collections::BTreeSet;
use std::time::Duration;

use ratelimit_runtime::{Limit, Rejection, StoreError};
use redis::{Commands, Connection};
use support::limits::{DAY, HOUR, MINUTE, SECOND};
use support::server::Server;

use self::random::Forms;
use super::{Request, StorePair, keys};

const MICROSECOND: Duration = Duration::from_micros(1);

/// The versions of the states, see `lua/ring.lua` and `lua/log.lua`.
const SMALL: u8 = 3;
const SMALL_WIDE: u8 = 4;
const LARGE: u8 = 5;
const LARGE_WIDE: u8 = 6;
const LOG: u8 = 2;

fn limit(threshold: u32, period: Duration) -> Limit {
    Limit::sliding("forms", threshold, period)
}

/// Returns the state of the only count.
fn state(connection: &mut Connection) -> Option<Vec<u8>> {
    let keys = keys(connection);
    let key = keys.iter().find(|key| key.ends_with('}'))?;
    connection.get(key).expect("a string")
}

/// Returns the version of the only count, without its mark of a birth.
fn version(connection: &mut Connection) -> Option<u8> {
    state(connection).map(|state| state[0] % 64)
}

/// Returns the base of the only count, which has a ring.
fn base(connection: &mut Connection) -> u64 {
    let state = state(connection).expect("a ring");
    let from = if state[0] > 64 { 12 } else { 5 };
    state[from..from + 7].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A ring that is never empty counts its times from a new base before they grow too large.
#[tokio::test]
async fn the_base_of_a_busy_ring_moves() {
    let server = Server::start();
    for (period, threshold, form) in [
        (MINUTE, 50, SMALL),
        (HOUR, 50, SMALL),
        (HOUR, 700, LARGE),
        (2 * HOUR, 50, SMALL_WIDE),
        (12 * DAY, 700, LARGE_WIDE),
    ] {
        let mut test = Forms::on(&server, 1);
        let limit = limit(threshold, period);
        // The longest time that 4 or 5 bytes hold.
        let span = Duration::from_micros(1 << if period > HOUR { 40 } else { 32 });
        let (apart, mut bases) = (period / threshold + MICROSECOND, BTreeSet::new());
        let calls = (3 * span + period).as_nanos() / apart.as_nanos();
        for call in 0..calls {
            let clock = test.now();
            // The model is slow, so it decides some of the calls.
            let is_checked = call < 10 || call % 97 == 0 || calls - call < 2 * 97;
            if is_checked || calls < 20_000 {
                assert!(test.compare(&limit, Request::Check(1)).await.allowed);
                test.compare(&limit, Request::Peek(threshold / 2)).await;
            } else {
                assert!(test.stores.compare(&limit, Request::Check(1)).await.allowed);
                test.model.charge(&limit, clock, 1);
            }
            bases.insert(base(&mut test.connection));
            test.stores.clock.advance(apart);
        }
        assert_eq!(version(&mut test.connection), Some(form));
        // A new base is a period ago.
        let needed = (3 * span).as_secs() / (span - period).as_secs();
        assert!((needed / 2..needed * 2).contains(&(bases.len() as u64)), "{period:?}: {bases:?}");
        test.stores.reset(&limit).await;
    }
}

/// A clock that steps back and a call after a long quiet time.
#[tokio::test]
async fn a_ring_outlives_steps_of_the_clock_and_quiet_times() {
    let server = Server::start();
    for threshold in [7, 100, 400] {
        let mut test = Forms::on(&server, 2);
        let limit = limit(threshold, HOUR);
        for quiet in [HOUR - MICROSECOND, HOUR, 71 * MINUTE, 72 * MINUTE, 40 * DAY, 4_000 * DAY] {
            for _ in 0..threshold {
                assert!(test.compare(&limit, Request::Check(1)).await.allowed);
                test.stores.clock.advance(MICROSECOND);
            }
            test.stores.clock.set(test.stores.clock.now() - 3 * HOUR);
            assert!(!test.compare(&limit, Request::Check(1)).await.allowed);
            test.compare(&limit, Request::Peek(0)).await;
            test.compare(&limit, Request::Refund(2)).await;
            for _ in 0..2 {
                assert!(test.compare(&limit, Request::Check(1)).await.allowed);
            }
            test.stores.clock.advance(3 * HOUR + quiet);
            test.compare(&limit, Request::Peek(1)).await;
            test.compare(&limit, Request::Check(1)).await;
            test.stores.clock.advance(HOUR);
            test.compare(&limit, Request::Peek(threshold)).await;
        }
        test.stores.reset(&limit).await;
    }
}

/// A full ring becomes a log when the threshold is raised, and the log a ring once it is empty.
#[tokio::test]
async fn a_ring_becomes_a_log_and_the_log_a_ring() {
    let server = Server::start();
    let mut test = Forms::on(&server, 3);
    for (threshold, form) in [(120, SMALL), (1_024, LARGE), (64, SMALL)] {
        let (low, high) = (limit(threshold, HOUR), limit(5_000, HOUR));
        // Several charges in a microsecond become one record.
        for call in 0..threshold {
            assert!(test.compare(&low, Request::Check(1)).await.allowed);
            test.stores.clock.advance(MICROSECOND * (call % 3));
        }
        assert_eq!(version(&mut test.connection), Some(form));
        assert!(!test.compare(&low, Request::Check(1)).await.allowed);
        // A peek, a refund and a call that is rejected leave it as it is.
        test.compare(&high, Request::Peek(4_000)).await;
        assert!(!test.compare(&high, Request::Check(5_000)).await.allowed);
        test.compare(&high, Request::Refund(1)).await;
        assert_eq!(version(&mut test.connection), Some(form));
        assert!(test.compare(&high, Request::Check(3_000)).await.allowed);
        assert_eq!(version(&mut test.connection), Some(LOG));
        let charged = test.model.charged_at();
        for at in charged.iter().step_by(7) {
            test.compare(&low, Request::Return(2, *at)).await;
        }
        for cost in [1, 60, threshold] {
            test.compare(&low, Request::Check(cost)).await;
            test.compare(&high, Request::Check(cost)).await;
        }
        test.stores.clock.advance(HOUR);
        // The ring takes its form when it grows.
        for _ in 0..2 {
            assert!(test.compare(&low, Request::Check(1)).await.allowed);
        }
        assert_eq!(
            version(&mut test.connection),
            Some(if threshold > 120 { LARGE } else { SMALL })
        );
        test.stores.reset(&low).await;
        test.model.reset();
    }
    // A log with segments.
    let high = limit(50_000, HOUR);
    test.stores.fill(&high, 4_200, MICROSECOND).await;
    assert_eq!(keys(&mut test.connection).len(), 2);
    test.stores.clock.advance(HOUR);
    assert!(test.stores.compare(&limit(10, HOUR), Request::Check(1)).await.allowed);
    assert_eq!((keys(&mut test.connection).len(), version(&mut test.connection)), (1, Some(SMALL)));
}

/// Debts that a ring can hold, and debts that it cannot.
#[tokio::test]
async fn a_large_debt_makes_a_ring_a_log() {
    let server = Server::start();
    let test = Forms::on(&server, 4);
    let mut connection = server.connection();
    for (threshold, debt, form) in
        [(10, 100, SMALL), (10, 300, LARGE), (900, 124, LARGE), (900, 125, LOG), (10, 70_000, LOG)]
    {
        let limit = limit(threshold, HOUR);
        for step in 0..threshold {
            test.stores.compare(&limit, Request::Check(1)).await;
            test.stores.clock.advance(MICROSECOND);
            if step + 1 == threshold {
                test.stores.compare(&limit, Request::Refund(1)).await;
            }
        }
        let redis = test.stores.redis.acquire(&limit, "key", 1).await.expect("admitted");
        let embedded = test.stores.embedded.acquire(&limit, "key", 1).await.expect("admitted");
        test.stores.clock.advance(SECOND);
        for permit in [redis, embedded] {
            permit.settle(debt + 1);
        }
        test.stores.redis.flush().await.expect("settled");
        assert_eq!(version(&mut connection), Some(form), "{debt} under {threshold}");
        for cost in [0, 1, threshold / 2, threshold] {
            assert!(!test.stores.compare(&limit, Request::Peek(cost.max(1))).await.allowed);
        }
        test.stores.clock.advance(HOUR - SECOND);
        test.stores.compare(&limit, Request::Peek(1)).await;
        test.stores.clock.advance(SECOND);
        assert!(test.stores.compare(&limit, Request::Check(threshold)).await.allowed);
        assert_ne!(version(&mut connection), Some(LOG));
        test.stores.reset(&limit).await;
    }
}

/// No value that is not a state is read as one, and none is changed.
#[tokio::test]
async fn a_damaged_ring_is_not_read() {
    let server = Server::start();
    let stores = StorePair::on(&server);
    let mut connection = server.connection();
    for (threshold, period) in [(10, HOUR), (10, 2 * HOUR), (200, HOUR), (200, 2 * HOUR)] {
        let limit = limit(threshold, period);
        stores.fill(&limit, threshold, MICROSECOND).await;
        let key = keys(&mut connection).remove(0);
        let state: Vec<u8> = connection.get(&key).expect("a string");
        let is_large = threshold > 120;
        let mut damaged: Vec<Vec<u8>> = (1..state.len().min(70))
            .filter(|length| !is_large || *length < 26)
            .map(|length| state[..length].to_vec())
            .collect();
        // A large ring whose head, length or slots are wrong, or a small one without its mark.
        for (from, bytes) in
            [(12, &[255, 255][..]), (14, &[255, 255]), (14, &[0, 0]), (16, &[0, 1])]
        {
            let mut other = state.clone();
            other.splice(from..from + bytes.len(), bytes.iter().copied());
            if is_large {
                damaged.push(other);
            }
        }
        for version in (0..=255).filter(|version| ![2, 3, 4, 5, 6, 66, 130, 194].contains(version))
        {
            if !(67..=70).contains(&version) {
                damaged.push([&[version], &state[1..]].concat());
            }
        }
        for value in damaged {
            let _: () = connection.set(&key, &value).expect("SET");
            for cost in [1, threshold] {
                let rejected = stores.redis.check(&limit, "key", cost).await;
                let Err(Rejection::Unavailable { error, .. }) = rejected else {
                    panic!("{value:?}: {rejected:?}");
                };
                assert!(matches!(error, StoreError::ForeignKey { .. }), "{value:?}: {error:?}");
            }
            assert_eq!(connection.get::<_, Vec<u8>>(&key).expect("a string"), value);
        }
        stores.reset(&limit).await;
    }
}
