//! Calls of every kind, to be seen.

use std::time::Duration;

use ratelimit_runtime::{Check, Limit, Part};

use crate::{KEY, Timed};

const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);
const PLAIN: Limit = Limit::sliding("plain", 1, HOUR);
const SHADOW: Limit = Limit::token_bucket("shadow", 1, HOUR).shadow(true);
const WIDE: Limit = Limit::fixed("wide", 5, HOUR);
const NARROW: Limit = Limit::fixed("narrow", 2, HOUR);
const LINE: Limit = Limit::sliding("line", 1, HOUR);
const SLOT: Limit = Limit::leaky_bucket("slot", 1, HOUR);
const QUIET: Limit = Limit::sliding("quiet", 2, HOUR);

/// One is admitted, one is refused, one never can be admitted.
pub(crate) async fn plain(on: &Timed) {
    assert!(on.limiter.check(&PLAIN, KEY, 1).await.is_ok());
    assert!(on.limiter.check(&PLAIN, KEY, 1).await.is_err());
    assert!(on.limiter.check(&PLAIN, KEY, 2).await.is_err());
}

/// The same, and all go on.
pub(crate) async fn shadow(on: &Timed) {
    for cost in [1, 1, 2] {
        assert!(on.limiter.check(&SHADOW, KEY, cost).await.is_ok());
    }
}

/// Two are admitted and one is refused, all by the word of the second limit.
pub(crate) async fn several(on: &Timed) {
    for admitted in [true, true, false] {
        let parts = [Part::new(&WIDE, &KEY, 1), Part::new(&NARROW, &KEY, 1)];
        assert_eq!(on.limiter.check_all(&parts).await.is_ok(), admitted);
    }
}

/// Of each kind of wait: one is admitted at once, one after an hour, and for one there is no time.
pub(crate) async fn waits(on: &Timed) {
    let several = |wait| {
        let [wide, narrow] = [WIDE, NARROW].map(|limit| limit.wait(wait));
        on.limiter.check_all(&[Part::new(&wide, &"waits", 1), Part::new(&narrow, &"waits", 2)])
    };
    let each: [&dyn Fn(Duration) -> Check; 3] = [
        &|wait| on.limiter.check(&LINE.wait(wait), KEY, 1),
        &|wait| on.limiter.check(&SLOT.wait(wait), KEY, 1),
        &several,
    ];
    for call in each {
        assert!(call(HOUR).await.is_ok());
        let later = tokio::spawn(call(HOUR));
        // It is in line, and knows its time.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(call(MINUTE).await.is_err());
        on.clock.advance(HOUR);
        assert!(later.await.expect("no panic").is_ok());
    }
}

/// Nothing that is checked.
pub(crate) async fn quiet(on: &Timed) {
    assert!(on.limiter.peek(&QUIET, KEY, 1).await.is_ok());
    assert!(on.limiter.peek(&QUIET, KEY, 3).await.is_err());
    assert!(on.limiter.peek(&QUIET.shadow(true), KEY, 3).await.is_ok());
    on.limiter.refund(&QUIET, KEY, 1).await.expect("a decision");
    on.limiter.reset(&QUIET, KEY).await.expect("a decision");
}

/// A call that cannot be asked.
pub(crate) async fn nothing(on: &Timed) {
    let parts = [Part::new(&PLAIN, &KEY, 1), Part::new(&SHADOW, &KEY, 1)];
    assert!(on.limiter.check_all(&parts).await.is_err());
}
