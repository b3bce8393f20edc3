//! 30,000,000,000 tokens a month, as each part of the interface writes and reports them. `tests/stores` has the
//! decisions of each algorithm, and `tests/web` the headers of each amount.

use std::time::Duration;

use ratelimit_runtime::web::RateLimitLayer;
use ratelimit_runtime::{Calendar, Limit, Rejection, RuleSet, rate_limit};

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
        test.complete(1, 25_000_000_000).await.expect("admitted");
        assert_eq!(test.used().await, 40_000_000_000, "a debt");
        let rejection = test.complete(1, 0).await.expect_err("a debt");
        assert_eq!(rejection.retry_after(), Some(REST_OF_MONTH));
        let instant = Duration::from_micros(1);
        test.clock.advance(REST_OF_MONTH.saturating_sub(instant));
        test.complete(1, 0).await.expect_err("still this month");
        test.clock.advance(instant);
        test.complete(MONTHLY, 0).await.expect("the next month");
        let costly = test.complete(MONTHLY + 1, 0).await;
        assert!(matches!(costly, Err(Rejection::CostExceedsCapacity { .. })), "{costly:?}");
    }

    async fn rules_change_the_budget_of_all_and_of_a_key(test) {
        let set = |text: &str| {
            let rules = RuleSet::from_toml(text).expect(text);
            assert_eq!(RuleSet::from_json(&rules.to_json()).expect("JSON"), rules);
            test.limiter.set_rules(rules).expect(text);
        };
        let left = async || {
            let peeked = test.limiter.peek(&LIMIT, test.key, 0).await;
            peeked.map(|decision| (decision.remaining, decision.limit))
        };
        test.complete(12_345_678_901, 12_345_678_901).await.expect("admitted");
        set("monthly = { threshold = 40_000_000_000 }");
        assert_eq!(left().await, Ok((27_654_321_099, 40_000_000_000)));
        test.complete(27_654_321_099, 27_654_321_098).await.expect("admitted");
        let key = test.key;
        set(&format!("monthly = {{ threshold = 5, keys.{key}.threshold = 50_000_000_000 }}"));
        assert_eq!(left().await, Ok((10_000_000_001, 50_000_000_000)));
        set(&format!("monthly.keys.{key}.threshold = 10_000_000_000"));
        let rejection = test.complete(1, 1).await.expect_err("lowered");
        assert_eq!(rejection.retry_after(), Some(REST_OF_MONTH));
        set("");
        assert_eq!(left().await, Ok((0, MONTHLY)));
        assert_eq!(test.used().await, 39_999_999_999);
    }

    async fn headers_have_the_exact_amounts_and_the_end_of_the_month(test) {
        let most = Limit::calendar("most", 999_999_999_999_999, Calendar::Month);
        let key = test.key;
        let layer = RateLimitLayer::new().limiter(test.limiter.clone());
        let layer = layer.limit(LIMIT, move |_| key).limit(most, move |_| key);
        test.complete(MONTHLY - 1, MONTHLY - 1).await.expect("admitted");
        test.limiter.credit(&LIMIT, key, 12_345_678_901).await.expect("a reply");
        let (admitted, end) = (respond(&layer).await, REST_OF_MONTH.as_secs());
        assert_eq!(
            admitted.headers()["ratelimit"],
            format!(r#""monthly";r=12345678901;t={end}, "most";r=999999999999998;t={end}"#)
        );
        let policy = admitted.headers()["ratelimit-policy"].to_str().expect("ASCII");
        let quotas = r#";q=30000000000;w=2678400, "most";q=999999999999999;"#;
        assert!(policy.contains(quotas), "{policy}");
        test.complete(12_345_678_901, 12_345_678_901).await.expect("admitted");
        let rejected = respond(&layer).await;
        assert_eq!(rejected.status(), 429);
        assert_eq!(rejected.headers()["retry-after"], end.to_string());
    }
}
