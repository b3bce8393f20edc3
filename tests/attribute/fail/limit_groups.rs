use ratelimit_runtime::rate_limit;

#[rate_limit(limit(period = 1, threshold = 2), period = 30, algo = "fixed")]
async fn misplaced_outside() -> Option<()> {
    None
}

#[rate_limit(limit(period = 1, threshold = 2, scope = "process", shadow = true))]
async fn misplaced_inside() -> Option<()> {
    None
}

#[rate_limit(limit(period = 1), limit(threshold = 0, period = "1h"), limit())]
async fn incomplete() -> Option<()> {
    None
}

#[rate_limit(limit(period = 1, threshold = 2, limit(period = "1h", threshold = 3)))]
async fn nested() -> Option<()> {
    None
}

#[rate_limit(limit = 5)]
async fn not_a_group() -> Option<()> {
    None
}

#[rate_limit(limit { period = 1, threshold = 2 })]
async fn braces() -> Option<()> {
    None
}

#[rate_limit(limit(period = 1, treshold = 2, algo = "fixed", burst = 2), limits(period = 1))]
async fn typos() -> Option<()> {
    None
}

#[rate_limit(limits("10/s", key = user))]
async fn typo_of_the_only_group(user: u64) -> Option<u64> {
    Some(user)
}

#[rate_limit(
    limit(period = 1, threshold = 5),
    limit(period = "1h", threshold = 3, cost = 4),
    cost = 4
)]
async fn costs() -> Option<()> {
    None
}

#[rate_limit(
    limit(period = 1, threshold = 2, cost = 1),
    limit(period = "1h", threshold = 3),
    cost = 4
)]
async fn common_cost() -> Option<()> {
    None
}

#[rate_limit(limit(period = 1, threshold = 5, key = "{usr}"), key = "{nobody}")]
async fn keys(user: u64) -> Option<()> {
    None
}

#[rate_limit(
    limit(period = 60, threshold = 5, name = "api", key = user),
    limit(period = "1h", threshold = 50, name = "api", key = user),
    limit(period = "1m", threshold = 10, name = "api", key = user)
)]
async fn same_name(user: u64) -> Option<u64> {
    Some(user)
}

fn main() {}
