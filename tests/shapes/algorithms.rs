//! Every algorithm with its own arguments, and a name that two functions share.

use ratelimit_runtime::{Clock, RateLimiter, VirtualClock, rate_limit};

macro_rules! limited {
    ($($name:ident: $admitted:literal, ($($argument:tt)*);)*) => {
        $(
            #[rate_limit(period = "1h", $($argument)*)]
            async fn $name() -> Option<()> {
                Some(())
            }
        )*

        async fn each_admits_its_capacity() {
            $(
                for call in 0..$admitted {
                    assert!($name().await.is_some(), "call {call} of {}", stringify!($name));
                }
                assert!($name().await.is_none(), "{}", stringify!($name));
            )*
        }
    };
}

limited! {
    default: 3, (threshold = 3);
    sliding: 3, (threshold = 3, algo = "sliding");
    fixed: 3, (threshold = 3, algo = "fixed");
    aligned: 3, (threshold = 3, algo = "fixed", align = "utc");
    east: 3, (threshold = 3, algo = "fixed", align = "+05:30");
    west: 3, (threshold = 3, align = "-08:00", algo = "fixed");
    sliding_counter: 3, (threshold = 3, algo = "sliding_counter");
    token_bucket: 3, (threshold = 3, algo = "token_bucket");
    token_burst: 5, (threshold = 3, algo = "token_bucket", burst = 5);
    leaky_bucket: 1, (threshold = 3, algo = "leaky_bucket");
    leaky_burst: 2, (burst = 2, threshold = 3, algo = "leaky_bucket");
}

#[rate_limit(period = 3600, threshold = 1, name = "shared")]
async fn one() -> Option<()> {
    Some(())
}

#[rate_limit(period = 3600.0, threshold = 1, name = "shared")]
async fn other() -> Option<()> {
    Some(())
}

async fn run() {
    each_admits_its_capacity().await;
    assert!(one().await.is_some());
    assert!(other().await.is_none());
}

#[tokio::test]
async fn admits_the_capacity_of_each_algorithm() {
    // With a virtual clock, no window ends during the test.
    let clock = VirtualClock::new();
    let limiter = RateLimiter::builder().clock(Clock::Virtual(clock)).build().unwrap();
    limiter.scope(run()).await;
}
