//! Mistakes whose place is the whole attribute, all mistakes of one attribute, and one below another attribute. Callers
//! of the functions still compile.

use ratelimit_runtime::{rate_limit, rate_limit as limited};

#[rate_limit]
async fn without_both() -> Option<()> { None }

#[rate_limit(period = 30)]
async fn without_threshold() -> Option<()> { None }

#[rate_limit(threshold = 30, key = id)]
async fn without_period(id: u64) -> Option<()> { None }

#[limited(period = 1, threshold = 10)]
#[limited(period = 60, threshold = 100)]
async fn twice_by_another_name() -> Option<()> { None }

#[limited(period = 1, threshold = 10, scope = "process")]
#[limited(period = 60, threshold = 100, scope = "process")]
fn twice_without_async() -> Option<()> { None }

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
fn say_hi(user: u64) -> String { user.to_string() }

#[tokio::main]
#[rate_limit(period = 30, threshold = 2)]
async fn below_main() -> Option<()> { None }

fn main() {
    let _: String = say_hi(7);
}
