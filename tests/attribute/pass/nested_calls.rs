//! As many nested calls as without `count_if`, under the recursion limit that the documentation names.

#![recursion_limit = "256"]

use ratelimit_runtime::{Rejection, rate_limit};

macro_rules! nested {
    ($name:ident) => {
        async fn $name() -> Result<u8, Rejection> {
            tokio::task::yield_now().await;
            Ok(7)
        }
    };
    ($name:ident $next:ident $($more:ident)*) => {
        #[rate_limit(period = "1h", threshold = 1, count_if = Result::is_err)]
        async fn $name() -> Result<u8, Rejection> {
            $next().await
        }

        nested! { $next $($more)* }
    };
}

nested! {
    f30 f29 f28 f27 f26 f25 f24 f23 f22 f21 f20 f19 f18 f17 f16 f15 f14 f13 f12 f11 f10 f9 f8 f7
    f6 f5 f4 f3 f2 f1
}

fn assert_send<T: Send>(value: T) -> T {
    value
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(runtime.block_on(assert_send(f30())).unwrap(), 7);
}
