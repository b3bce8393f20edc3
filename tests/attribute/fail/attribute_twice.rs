use ratelimit_runtime::{rate_limit, rate_limit as limited};

#[rate_limit(period = 1, threshold = 10)]
#[rate_limit(period = 60, threshold = 100)]
async fn twice() -> Option<()> {
    None
}

#[ratelimit_runtime::rate_limit(period = 1, threshold = 10)]
#[inline]
#[ratelimit_runtime::rate_limit(period = 60, threshold = 100, name = "minute")]
async fn twice_by_path() -> Option<()> {
    None
}

#[limited(period = 1, threshold = 10)]
#[limited(period = 60, threshold = 100)]
async fn twice_by_another_name() -> Option<()> {
    None
}

#[limited(period = 1, threshold = 10, scope = "process")]
#[limited(period = 60, threshold = 100, scope = "process")]
fn twice_without_async() -> Option<()> {
    None
}

fn main() {}
