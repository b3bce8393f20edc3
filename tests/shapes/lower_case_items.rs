//! Items in lower case, such as those of a schema that a module imports whole, beside annotated functions. A pattern
//! sees items wherever it comes from, so no item may have a name that the expansion binds.

#![allow(dead_code, nonstandard_style, reason = "items with common names")]

use ratelimit_runtime::RateLimiter;

/// Functions with all arguments that bind something.
macro_rules! functions {
    () => {
        use ratelimit_runtime::{Limit, Permit, RateLimiter, Rejection, rate_limit};

        const SHARED: Limit = Limit::fixed("items.shared", 9, std::time::Duration::from_secs(60));

        #[rate_limit(period = "1h", threshold = 9, key = "{user}:{units:?}", cost = units)]
        async fn plain(user: &str, units: u64) -> Result<usize, Rejection> {
            Ok(user.len())
        }

        #[rate_limit(period = "1h", threshold = 9, scope = "process")]
        fn synchronous() -> Option<u64> {
            Some(1)
        }

        #[rate_limit(period = "1h", threshold = units, burst = units, lease = 1,
            algo = "token_bucket", limiter = given, on_limited = |_| None)]
        async fn computed(given: &RateLimiter, units: u64) -> Option<u64> {
            Some(units)
        }

        #[rate_limit(
            limit(limit = SHARED, settle = |_| 1),
            limit(period = "1h", threshold = units, block = |_| None),
            limit(period = "1m", threshold = 9, key = (user, 1), cost = 2, permit = _corrected),
            limit(in_flight = 2, hold = "30s"),
            key = user, cost = 1, limiter = given
        )]
        async fn group(given: &RateLimiter, user: &str, units: u64) -> Option<u64> {
            Some(units)
        }

        #[rate_limit(period = "1h", threshold = 9, count_if = Option::is_some)]
        async fn counted(_: u8, (first, _): (u8, u8)) -> Option<u8> {
            Some(first)
        }

        #[rate_limit(period = "1h", threshold = 9, permit = corrected, block = |_| None)]
        async fn blocked(_: u8) -> Result<u8, Rejection> {
            Permit::settle(corrected, 1);
            Ok(1)
        }

        #[rate_limit(in_flight = 2, scope = "process")]
        async fn in_flight(_: u8, (first, _): (u8, u8)) -> Option<u8> {
            Some(first)
        }

        #[rate_limit(period = "1h", threshold = 9)]
        async fn hidden(_: u8) -> impl std::fmt::Debug {
            1
        }

        pub(super) async fn run(given: &RateLimiter) {
            plain("ann", 2).await.expect("admitted");
            synchronous().expect("admitted");
            computed(given, 2).await.expect("admitted");
            group(given, "ann", 2).await.expect("admitted");
            counted(0, (1, 2)).await.expect("admitted");
            blocked(0).await.expect("admitted");
            in_flight(0, (1, 2)).await.expect("admitted");
            assert_eq!(format!("{:?}", hidden(0).await), "Ok(1)");
            let user = "ann";
            given.check(&SHARED, ratelimit_runtime::key!("{user}:1"), 1).await.expect("admitted");
        }
    };
}

macro_rules! with_names {
    ($items:ident) => {
        $items! {
            _parameter_0 _parameter_1 burst check cost decided key lease limit limit_1 limit_2 limiter output
            parameter pending permit permit_0 permit_1 permit_2 permits rejection slot threshold unreached value
        }
    };
}

mod constants {
    macro_rules! items {
        ($($name:ident)*) => { $(const $name: () = ();)* };
    }
    with_names!(items);
    functions!();
}

mod statics {
    macro_rules! items {
        ($($name:ident)*) => { $(static $name: () = ();)* };
    }
    with_names!(items);
    functions!();
}

mod unit_structs {
    macro_rules! items {
        ($($name:ident)*) => { $(struct $name;)* };
    }
    with_names!(items);
    functions!();
}

#[tokio::test]
async fn items_do_not_break_the_expansion() {
    let limiter = RateLimiter::embedded();
    let run = async {
        constants::run(&limiter).await;
        statics::run(&limiter).await;
        unit_structs::run(&limiter).await;
    };
    limiter.scope(run).await;
}
