//! `Limit::notify_at`: one event for each call that reaches the percentage, whichever way decides it.

use std::sync::LazyLock;

use futures::future::join_all;
use ratelimit_runtime::web::RateLimitLayer;
use ratelimit_runtime::{
    Limit, OnError, Part, Permit, RateLimiter, Rejection, Rule, RuleSet, rate_limit,
};
use support::ALGORITHMS;
use support::limits::{DAY, HOUR, limit, ruled};
use support::lines::wait_until_idle;
use support::log::Log;
use support::server::Server;

use crate::{TestLimiter, respond};

/// The events of this process. A background thread writes those of leases, so the subscriber is global.
static LOG: LazyLock<Log> = LazyLock::new(|| {
    let log = Log::default();
    let format = tracing_subscriber::fmt().with_writer(log.writer()).with_ansi(false);
    tracing::subscriber::set_global_default(format.finish()).expect("the first one");
    log
});

impl TestLimiter {
    fn limiters(server: &Server) -> [Self; 2] {
        LazyLock::force(&LOG);
        Self::both(server)
    }

    /// Asserts the units that the events about a limit report so far as used and as remaining.
    #[track_caller]
    fn assert_notified(&self, limit: &str, expected: &[[u64; 2]]) {
        let start = format!("a call has reached `notify_at` limit=\"{limit}\" key={} ", self.key);
        let text = LOG.text();
        let lines = text.lines().filter_map(|line| line.split_once(&start));
        let events = lines.map(|(level, event)| {
            assert!(level.contains(" WARN "), "{level}");
            let number = |name: &str| -> u64 {
                let (_, rest) = event.split_once(&format!("{name}=")).expect(event);
                rest.split(' ').next().expect(event).parse().expect(event)
            };
            let [used, remaining] = ["used", "remaining"].map(number);
            assert_eq!(used + remaining, number("capacity"), "{event}");
            assert!(used * 100 >= number("percent") * number("capacity"), "{event}");
            [used, remaining]
        });
        assert_eq!(events.collect::<Vec<_>>(), expected, "{limit} {}", self.key);
    }

    async fn admits(&self, limit: &Limit, cost: u64) -> bool {
        self.limiter.check(limit, self.key, cost).await.is_ok_and(|decision| decision.allowed)
    }
}

support::on_both_stores! {
    TestLimiter::limiters;

    async fn the_call_that_reaches_the_percentage_is_reported(test) {
        for algorithm in ALGORITHMS {
            let name = algorithm.as_str();
            let limit = limit(name, algorithm, 10, HOUR);
            let notifies = limit.notify_at(75);
            for cost in [0, 3, 4, 0] {
                assert!(test.admits(&notifies, cost).await);
            }
            test.limiter.peek(&notifies, test.key, 1).await.expect("admitted");
            assert!(!test.admits(&notifies, 4).await, "and is not charged");
            test.assert_notified(name, &[]);
            // Three quarters are 7.5 units.
            for cost in [1, 1, 0, 1] {
                assert!(test.admits(&notifies, cost).await);
            }
            assert!(!test.admits(&notifies, 1).await);
            test.assert_notified(name, &[[8, 2]]);
            test.clock.advance(3 * HOUR);
            assert!(test.admits(&limit, 10).await, "the limit without it says nothing");
            test.clock.advance(3 * HOUR);
            assert!(test.admits(&notifies, 10).await);
            test.assert_notified(name, &[[8, 2], [10, 0]]);
        }
    }

    async fn several_limits_are_reported_if_all_admit_the_call(test) {
        let wide = Limit::fixed("wide", 10, HOUR).notify_at(60);
        let narrow = Limit::sliding("narrow", 5, HOUR).notify_at(100);
        let both = [Part::new(&wide, &test.key, 1), Part::new(&narrow, &test.key, 1)];
        for _ in 0..4 {
            test.limiter.check_all(&both).await.expect("admitted");
        }
        test.assert_notified("narrow", &[]);
        test.limiter.acquire_all(&both).await.expect("admitted").into_iter().for_each(Permit::keep);
        test.assert_notified("narrow", &[[5, 0]]);
        test.limiter.check_all(&both).await.expect_err("rejected");
        test.assert_notified("wide", &[]);
        // Two parts of one count are one charge.
        test.limiter.check_all(&[both[0], both[0]]).await.expect("admitted");
        test.assert_notified("wide", &[[7, 3]]);
    }

    async fn calls_that_wait_or_are_settled_reach_it_again(test) {
        let waiting = Limit::sliding("waiting", 2, HOUR).wait(HOUR).notify_at(100);
        let settled = Limit::fixed("settled", 10, DAY).notify_at(80);
        assert!(test.admits(&waiting, 1).await);
        test.clock.advance(HOUR / 2);
        assert!(test.admits(&waiting, 1).await);
        test.assert_notified("waiting", &[[2, 0]]);
        let call = tokio::spawn(test.limiter.check(&waiting, test.key, 1));
        wait_until_idle(&test.limiter).await;
        assert!(!call.is_finished());
        test.clock.advance(HOUR / 2);
        call.await.expect("no panic").expect("admitted");
        test.assert_notified("waiting", &[[2, 0], [2, 0]]);

        let permit = test.limiter.acquire(&settled, test.key, 9).await.expect("admitted");
        test.assert_notified("settled", &[[9, 1]]);
        permit.settle(3);
        test.limiter.flush().await.expect("settled");
        assert!(test.admits(&settled, 4).await);
        let permit = test.limiter.acquire(&settled, test.key, 1).await.expect("admitted");
        let events = [[9, 1], [8, 2]];
        test.assert_notified("settled", &events);
        permit.settle(5);
        test.limiter.flush().await.expect("settled");
        test.assert_notified("settled", &events);
    }

    async fn the_amounts_of_rules_count_and_exempt_keys_are_silent(test) {
        let limit = Limit::fixed("ruled", 10, HOUR).notify_at(50);
        let set = |rules: RuleSet| test.limiter.set_rules(rules).expect("valid");
        set(ruled("ruled", Rule::new().threshold(4)));
        assert!(test.admits(&limit, 1).await && test.admits(&limit, 1).await);
        test.assert_notified("ruled", &[[2, 2]]);
        set(ruled("ruled", Rule::new().threshold(100)));
        assert!(test.admits(&limit, 47).await);
        test.assert_notified("ruled", &[[2, 2]]);
        set(ruled("ruled", Rule::new().exempt(true)));
        assert!(test.admits(&limit, 1).await);
        set(ruled("ruled", Rule::new().threshold(99).shadow(true)));
        assert!(test.admits(&limit, 0).await && !test.admits(&limit, 51).await);
        test.assert_notified("ruled", &[[2, 2]]);
        assert!(test.admits(&limit, 1).await, "a shadow reports what it charges");
        test.assert_notified("ruled", &[[2, 2], [50, 49]]);
        assert!(!test.admits(&limit, 50).await);
        test.assert_notified("ruled", &[[2, 2], [50, 49]]);
    }

    async fn annotated_functions_and_layers_are_reported(test) {
        let layered = Limit::fixed("layered", 5, HOUR).notify_at(80);
        let key = test.key;
        let layer =
            RateLimitLayer::new().limiter(test.limiter.clone()).limit(layered, move |_| key);
        for reported in [&[][..], &[], &[], &[[4, 1]], &[[4, 1]]] {
            test.limiter.scope(annotated(key)).await.expect("admitted");
            assert_eq!(respond(&layer).await.status(), 200);
            test.assert_notified("annotated", reported);
            test.assert_notified("layered", reported);
        }
    }

    /// In one batch, and one after the other by calls in flight.
    async fn one_of_many_concurrent_calls_is_reported(test) {
        let limit = Limit::sliding("concurrent", 100, HOUR).notify_at(80);
        let slots = Limit::in_flight("slots", 5).notify_at(80);
        let calls = (0..100).map(|_| test.limiter.check(&limit, test.key, 1));
        assert!(join_all(calls).await.iter().all(Result::is_ok));
        test.assert_notified("concurrent", &[[80, 20]]);
        let calls = join_all((0..5).map(|_| test.limiter.acquire(&slots, test.key, 1))).await;
        assert!(calls.iter().all(Result::is_ok));
        test.assert_notified("slots", &[[4, 1]]);
    }
}

#[rate_limit(name = "annotated", period = "1d", threshold = 5, key = key, notify_at = 80)]
async fn annotated(key: &str) -> Result<(), Rejection> {
    Ok(())
}

/// The request that charges units in advance is reported, and not a call that spends them.
#[tokio::test]
async fn a_lease_is_reported_once_and_at_most_its_size_too_early() {
    let limit = Limit::fixed("leased", 1_000, HOUR).lease(50).notify_at(50);
    let server = Server::start();
    let [_, test] = TestLimiter::limiters(&server);
    let is_reported = || LOG.text().contains("limit=\"leased\" key=redis percent=50 used=5");
    for spent in 0..1_000 {
        assert!(spent > 450 || !is_reported(), "{spent}");
        assert!(test.admits(&limit, 1).await);
        assert!(spent < 500 || is_reported(), "{spent}");
    }
    assert_eq!(LOG.text().matches("limit=\"leased\"").count(), 1);
    let at_once = Limit::fixed("leased at once", 1_000, HOUR).lease(50).notify_at(50);
    assert!(test.admits(&at_once, 500).await);
    test.assert_notified("leased at once", &[[500, 500]]);
}

#[tokio::test]
async fn a_fallback_reports_nothing_and_a_key_is_a_hash_unless_it_may_be_logged() {
    let limit = Limit::fixed("fallback", 4, HOUR).on_error(OnError::Local).notify_at(50);
    let server = Server::start();
    let [_, away] = TestLimiter::limiters(&server);
    drop(server);
    for _ in 0..4 {
        assert!(away.admits(&limit, 1).await);
    }
    assert!(!LOG.text().contains("`notify_at` limit=\"fallback\""));
    RateLimiter::embedded().check(&limit, "alice", 2).await.expect("admitted");
    let text = LOG.text();
    assert!(text.contains("limit=\"fallback\" key=") && !text.contains("alice"), "{text}");
}
