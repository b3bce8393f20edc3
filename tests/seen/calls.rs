//! Calls of every kind, for the tests of events and metrics.

use ratelimit_runtime::Check;

use crate::prelude::*;

const PLAIN: Limit = Limit::sliding("plain", 1, HOUR);
const SHADOW: Limit = Limit::token_bucket("shadow", 1, HOUR).shadow(true);
const WIDE: Limit = Limit::fixed("wide", 5, HOUR);
const NARROW: Limit = Limit::fixed("narrow", 2, HOUR);
const LINE: Limit = Limit::sliding("line", 1, HOUR);
const SLOT: Limit = Limit::leaky_bucket("slot", 1, HOUR);
const OTHER: Limit = Limit::sliding("other_operations", 2, HOUR);

/// One call is admitted, one is rejected, and one costs more than the capacity.
pub(crate) async fn plain(test: &TestLimiter) {
    assert!(test.limiter.check(&PLAIN, KEY, 1).await.is_ok());
    assert!(test.limiter.check(&PLAIN, KEY, 1).await.is_err());
    assert!(test.limiter.check(&PLAIN, KEY, 2).await.is_err());
}

/// Calls of a blocked key: of one limit, of a shadow, and beside another limit.
pub(crate) async fn blocked(test: &TestLimiter) {
    let limit = Limit::sliding("blocked", 5, Duration::from_secs(3600));
    test.limiter.block(&limit, KEY, Duration::from_secs(7200)).await.expect("blocked");
    assert!(test.limiter.check(&limit, KEY, 2).await.is_err());
    assert!(test.limiter.check(&limit.shadow(true), KEY, 2).await.is_ok());
    let parts = [Part::new(&WIDE, &KEY, 1), Part::new(&limit, &KEY, 2)];
    assert!(test.limiter.check_all(&parts).await.is_err());
}

pub(crate) async fn shadow(test: &TestLimiter) {
    for cost in [1, 1, 2] {
        assert!(test.limiter.check(&SHADOW, KEY, cost).await.is_ok());
    }
}

/// Two calls of two limits are admitted and one is rejected. The second limit determines each decision.
pub(crate) async fn several(test: &TestLimiter) {
    for admitted in [true, true, false] {
        let parts = [Part::new(&WIDE, &KEY, 1), Part::new(&NARROW, &KEY, 1)];
        assert_eq!(test.limiter.check_all(&parts).await.is_ok(), admitted);
    }
}

/// Calls of a limit of calls in flight beside a rate: one is admitted and runs. Then the slots reject a call, both
/// limits do, and the rate does. Last, both limits are shadows.
pub(crate) async fn busy(test: &TestLimiter) {
    let (slots, rate) = (Limit::in_flight("slots", 1).hold(HOUR), Limit::fixed("beside", 2, HOUR));
    let acquire = async |slots: &Limit, rate: &Limit, units: u64| {
        let parts = [Part::new(slots, &KEY, 1), Part::new(rate, &KEY, units)];
        test.limiter.acquire_all(&parts).await
    };
    let running = acquire(&slots, &rate, 1).await.expect("admitted");
    for (units, limit) in [(1, "slots"), (2, "beside")] {
        assert_eq!(acquire(&slots, &rate, units).await.expect_err("busy").name(), limit);
    }
    let shadows = [slots, rate].map(|limit| limit.shadow(true));
    acquire(&shadows[0], &shadows[1], 2).await.expect("a shadow");
    drop(running);
    test.limiter.flush().await.expect("stated");
    assert_eq!(acquire(&slots, &rate, 2).await.expect_err("limited").name(), "beside");
}

/// Calls of each kind of wait: one is admitted at once, one after an hour, and one would wait too long.
pub(crate) async fn waits(test: &TestLimiter) {
    let several = |wait| {
        let [wide, narrow] = [WIDE, NARROW].map(|limit| limit.wait(wait));
        test.limiter.check_all(&[Part::new(&wide, &"waits", 1), Part::new(&narrow, &"waits", 2)])
    };
    let each: [&dyn Fn(Duration) -> Check; 3] = [
        &|wait| test.limiter.check(&LINE.wait(wait), KEY, 1),
        &|wait| test.limiter.check(&SLOT.wait(wait), KEY, 1),
        &several,
    ];
    for call in each {
        assert!(call(HOUR).await.is_ok());
        let later = tokio::spawn(call(HOUR));
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(call(MINUTE).await.is_err());
        test.clock.advance(HOUR);
        assert!(later.await.expect("no panic").is_ok());
    }
}

pub(crate) async fn other_operations(test: &TestLimiter) {
    assert!(test.limiter.peek(&OTHER, KEY, 1).await.is_ok());
    assert!(test.limiter.peek(&OTHER, KEY, 3).await.is_err());
    assert!(test.limiter.peek(&OTHER.shadow(true), KEY, 3).await.is_ok());
    test.limiter.credit(&OTHER, KEY, 1).await.expect("a decision");
    test.limiter.reset(&OTHER, KEY).await.expect("a decision");
}

pub(crate) async fn mixed_limits(test: &TestLimiter) {
    let parts = [Part::new(&PLAIN, &KEY, 1), Part::new(&SHADOW, &KEY, 1)];
    assert!(test.limiter.check_all(&parts).await.is_err());
}

/// Calls without Redis: not decided, of a shadow, and of limits that admit or count in this process.
pub(crate) async fn undecided(test: &TestLimiter, limit: Limit) {
    let local = limit.on_error(OnError::Local);
    for (limit, is_admitted) in [
        (limit, false),
        (limit.shadow(true), true),
        (limit.on_error(OnError::Allow), true),
        (local, true),
        (local, false),
    ] {
        assert_eq!(test.limiter.check(&limit, KEY, 1).await.is_ok(), is_admitted, "{limit:?}");
    }
}
