//! Every algorithm with its own arguments.

use ratelimit_runtime::{VirtualClock, rate_limit};
use support::clocks::embedded_on;

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

#[tokio::test]
async fn admits_the_capacity_of_each_algorithm() {
    // With a virtual clock, no window ends during the test.
    embedded_on(&VirtualClock::new()).scope(each_admits_its_capacity()).await;
}
