//! Tools know limits without the attribute: those of layers, and those that code checks by hand. The only test of its
//! process, because a process registers few such limits.

use ratelimit_runtime::web::RateLimitLayer;
use ratelimit_runtime::{AnnouncedProcess, Limit, Rule, Rules};
use support::limits::MINUTE;
use support::server::Server;
use support::wait::{wait_for, wait_until};

#[tokio::test]
async fn a_process_announces_limits_without_the_attribute() {
    let server = Server::start();
    let limiter = server.builder().rules(Rules::redis()).log_keys(true).build().expect("valid");
    let layered = Limit::sliding("of a layer", 9, MINUTE);
    let line = line!() + 1;
    let layer: RateLimitLayer = RateLimitLayer::new().limit(layered, |_| "key");
    drop(layer);
    let by_hand = Limit::fixed("by hand", 1, MINUTE);
    let plan_limit = Limit::fixed("plans", 1, MINUTE);
    let looked = Limit::token_bucket("looked", 3, MINUTE).burst(5);
    let admitted = Limit::fixed("only admitted", 3, MINUTE);
    limiter.check(&admitted, "acme", 1).await.expect("admitted");
    for _ in 0..3 {
        let _ = limiter.check(&by_hand, "acme", 1).await;
    }
    // A limit whose amounts depend on the tenant.
    for (tenant, threshold) in [("small", 1), ("large", 2)] {
        let plan = plan_limit.try_amounts(threshold, None).expect("valid");
        while limiter.check(&plan, tenant, 1).await.is_ok() {}
    }
    // A rule for the limit, and no rejection.
    let mut shared = limiter.operator().shared_rules().await.expect("read");
    shared.rules.set("looked", Rule::new().threshold(30)).expect("valid");
    limiter.operator().share_rules(shared, "alice").await.expect("written");
    wait_until(async || !limiter.rules().is_empty()).await;
    limiter.check(&looked, "acme", 1).await.expect("admitted");
    // Neither does an operator who looks make a limit known.
    for name in ["of an operator", "looked"] {
        limiter.peek(&Limit::fixed(name, 1, MINUTE), "acme", 1).await.expect("a decision");
    }

    let has = |process: &AnnouncedProcess| {
        process.limits.iter().any(|announced| announced.limit.name() == "looked")
    };
    let fleet = async || limiter.operator().fleet().await.expect("read").into_iter();
    let process = wait_for(async || fleet().await.find(has)).await;
    let announced = |name: &str| {
        let limits = process.limits.iter().filter(|announced| announced.limit.name() == name);
        let limits: Vec<_> = limits.map(|it| (it.limit, &*it.place, it.is_computed)).collect();
        assert!(limits.len() <= 1, "{limits:?}");
        limits.first().copied()
    };
    let place = format!("{}:{line}:", file!());
    let (limit, found, is_computed) = announced("of a layer").expect("announced");
    assert_eq!((limit, is_computed), (layered, false));
    assert!(found.starts_with(&place), "{found}");
    assert_eq!(announced("by hand"), Some((by_hand, "", false)));
    assert_eq!(announced("plans"), Some((plan_limit, "", true)), "the amounts are 1");
    assert_eq!(announced("looked"), Some((looked, "", false)), "as the code says");
    assert_eq!(announced("only admitted"), None);
    assert_eq!(announced("of an operator"), None);
    let rejected: Vec<_> = process.rejected.iter().filter(|key| key.limit == "by hand").collect();
    let [key] = &rejected[..] else { panic!("{rejected:?}") };
    assert_eq!((&*key.key, key.rejected, key.period), ("acme", 2, MINUTE));
    assert!(key.since.elapsed().expect("the past") < MINUTE);
}
