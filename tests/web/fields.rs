//! The headers for any name and any numbers: they are structured fields, and different names stay different.

use std::collections::HashMap;
use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response};
use proptest::prelude::*;
use ratelimit_runtime::web::RateLimitLayer;
use ratelimit_runtime::{Limit, RateLimiter};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;

use crate::items;

fn fields(limit: Limit, limiter: &RateLimiter) -> [String; 2] {
    let layer = RateLimitLayer::new().limit(limit, |_| ()).limiter(limiter.clone());
    let inner =
        service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let request = Request::new(String::new());
    let response = runtime.block_on(layer.layer(inner).oneshot(request)).expect("infallible");
    ["ratelimit-policy", "ratelimit"].map(|name| {
        let value = response.headers().get(name).expect("the field");
        value.to_str().expect("ASCII").to_owned()
    })
}

proptest! {
    #[test]
    fn sends_structured_fields(
        names in proptest::collection::hash_set("\\PC{1,5}|[%\"\\\\0-9A-F]{1,4}|[\\x00-\\x7f]{1,3}", 1..4),
        algorithm in prop::sample::select(&support::ALGORITHMS[..]),
        threshold in 1..=999_999_999_999_999_u64,
        period in 1..3_000_000_000_000_000_u64,
        burst in any::<Option<u64>>(),
    ) {
        let period = Duration::from_micros(period);
        let mut names_by_item: HashMap<String, String> = HashMap::new();
        for name in names {
            let Ok(limit) = Limit::new(name.clone().leak(), algorithm, threshold, period) else {
                continue;
            };
            let with_burst = burst.and_then(|burst| limit.try_burst(burst).ok());
            let limit = with_burst.unwrap_or(limit);
            let (capacity, units) = (limit.capacity(), limit.capacity().max(threshold));
            let [policy, state] = fields(limit, &RateLimiter::embedded());
            let window = period.as_micros() * u128::from(units) / u128::from(threshold);
            let window = i64::try_from(window.div_ceil(1_000_000)).expect("small");
            let [(one, quota)] = &items(&policy)[..] else { panic!("{policy}") };
            prop_assert_eq!(&quota[..], [("q".into(), units.cast_signed()), ("w".into(), window)]);
            let [(other, left)] = &items(&state)[..] else { panic!("{state}") };
            prop_assert_eq!(&left[0], &("r".to_owned(), (capacity - 1).cast_signed()));
            prop_assert!(left[1].1 >= 1 && one == other);
            prop_assert_eq!(names_by_item.insert(one.clone(), name), None);
        }
    }
}
