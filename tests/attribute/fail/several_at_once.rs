//! All mistakes of one attribute are reported, and callers of the function still compile.

use ratelimit_runtime::rate_limit;

#[rate_limit(
    period = "5 minuts",
    threshold = -1,
    algo = "fixd",
    burts = 3,
    align = "gmt",
    key = "{usr}:{}:{tenant",
    cost = 0,
    cost = 1,
    name = "",
    on_limited = 3
)]
fn say_hi(user: u64) -> String {
    user.to_string()
}

fn main() {
    let _: String = say_hi(7);
}
