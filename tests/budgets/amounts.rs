//! 30,000,000,000 tokens a month, as each part of the interface writes and reports them. `tests/stores` has the
//! decisions of each algorithm, `tests/web` the headers of each amount, `tests/judged` rules of such amounts, and
//! `tests/cli` how an operator writes them.

use std::time::Duration;

use ratelimit_runtime::web::RateLimitLayer;
use ratelimit_runtime::{Calendar, Limit, Rejection, rate_limit};

use crate::{NOW, TestLimiter, respond};

const MONTHLY: u64 = 30_000_000_000;
const LIMIT: Limit = Limit::calendar("monthly", MONTHLY, Calendar::Month);

/// From the start of the tests to the end of their month.
const REST_OF_MONTH: Duration = Duration::from_secs(1_701_388_800 - NOW);

#[rate_limit(
    name = "monthly", period = "month", threshold = 30_000_000_000, key = key, cost = tokens,
    settle = |used| used.as_ref().copied().unwrap_or(0),
)]
async fn complete(key: &str, tokens: u64, used: u64) -> Result<u64, Rejection> {
    Ok(used)
}

#[rate_limit("30000000000/month", name = "monthly", key = key, cost = tokens)]
async fn written_as_text(key: &str, tokens: u64) -> Result<(), Rejection> {
    Ok(())
}

impl TestLimiter {
    async fn complete(&self, tokens: u64, used: u64) -> Result<u64, Rejection> {
        let result = self.limiter.scope(complete(self.key, tokens, used)).await;
        self.limiter.flush().await.expect("settled");
        result
    }

    async fn used(&self) -> u64 {
        self.limiter.operator().usage(&LIMIT, self.key).await.expect("a reply").used
    }
}

#[test]
fn texts_and_configurations_are_the_same_limit() {
    let text = "name = \"monthly\"\nthreshold = 30_000_000_000\nperiod = \"month\"";
    assert_eq!(toml::from_str::<Limit>(text).expect("TOML"), LIMIT);
    let json = serde_json::to_string(&LIMIT).expect("JSON");
    assert!(json.contains("\"threshold\":30000000000"), "{json}");
    assert_eq!(serde_json::from_str::<Limit>(&json).expect("JSON"), LIMIT);
    for text in ["30000000000/month", "30_000_000_000 per month"] {
        assert_eq!(Limit::parse("monthly", text).expect(text), LIMIT);
    }
    assert_eq!(format!("{LIMIT:?}"), "Limit(monthly: 30000000000 per month fixed, align utc)");
}

support::on_both_stores! {
    TestLimiter::both;

    async fn calls_are_charged_and_settled_exactly_until_the_month_ends(test) {
        test.complete(20_000_000_000, 10_000_000_001).await.expect("admitted");
        assert_eq!(test.used().await, 10_000_000_001);
        test.limiter.scope(written_as_text(test.key, 4_999_999_999)).await.expect("admitted");
        assert_eq!(test.used().await, 15_000_000_000);
        let costly = test.complete(15_000_000_001, 0).await;
        assert!(matches!(costly, Err(Rejection::Limited { .. })), "{costly:?}");
        let key = test.key;
        let layer = RateLimitLayer::new().limiter(test.limiter.clone()).limit(LIMIT, move |_| key);
        let (admitted, end) = (respond(&layer).await, REST_OF_MONTH.as_secs());
        let state = format!(r#""monthly";r=14999999999;t={end}"#);
        assert_eq!(admitted.headers()["ratelimit"], state);
        let policy = r#""monthly";q=30000000000;w=2678400"#;
        assert_eq!(admitted.headers()["ratelimit-policy"], policy);
        test.complete(1, 24_999_999_999).await.expect("admitted");
        assert_eq!(test.used().await, 40_000_000_000, "a debt");
        let rejection = test.complete(1, 0).await.expect_err("a debt");
        assert_eq!(rejection.retry_after(), Some(REST_OF_MONTH));
        assert_eq!(respond(&layer).await.headers()["retry-after"], end.to_string());
        let instant = Duration::from_micros(1);
        test.clock.advance(REST_OF_MONTH.saturating_sub(instant));
        test.complete(1, 0).await.expect_err("still this month");
        test.clock.advance(instant);
        test.complete(MONTHLY, 0).await.expect("the next month");
        let costly = test.complete(MONTHLY + 1, 0).await;
        assert!(matches!(costly, Err(Rejection::CostExceedsCapacity { .. })), "{costly:?}");
    }
}
