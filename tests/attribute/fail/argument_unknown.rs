#![allow(unused)]

use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30, treshold = 2)]
async fn typo() -> Option<()> {
    None
}

#[rate_limit(window = 30, max = 2)]
async fn synonyms() -> Option<()> {
    None
}

#[rate_limit(per = 30, count = 2)]
async fn other_synonyms() -> Option<()> {
    None
}

#[rate_limit(requests = 30, seconds = 2)]
async fn more_synonyms() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, colour = |a, b| { red })]
async fn unknown() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, key = user_id, tenant, groups = (a, b))]
async fn without_value(user_id: u64, tenant: u64) -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, user_id)]
async fn no_key(user_id: u64) -> Option<()> {
    None
}

#[rate_limit(per_second = 10, key = user_id)]
async fn of_other_libraries(user_id: u64) -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, store = "redis", ttl = 60, error = "slow down")]
async fn without_a_counterpart() -> Option<()> {
    None
}

fn main() {}
