use ratelimit_runtime::{Rejection, rate_limit};

fn busy() -> u16 {
    429
}

#[rate_limit(period = 30, threshold = 2, on_limited = |rejection: Rejection| rejection.name())]
async fn other_output() -> u16 {
    200
}

#[rate_limit(period = 30, threshold = 2, on_limited = busy)]
async fn no_parameter() -> u16 {
    200
}

fn main() {}
