use ratelimit_runtime::rate_limit;

const SECONDS: u64 = 30;
const CALLS: u64 = 2;

#[rate_limit(period = SECONDS, threshold = CALLS)]
async fn types() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, cost = items.len())]
async fn cost(items: Vec<u8>) -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, key = "{user}", cost = items.len() / 2)]
async fn beside_a_format(user: u64, items: Vec<u8>) -> Option<()> {
    None
}

#[rate_limit(limit(period = 30, threshold = 2), limit(period = 60, threshold = 3), cost = items.len() / 2)]
async fn of_groups(items: Vec<u8>) -> Option<()> {
    None
}

fn main() {}
