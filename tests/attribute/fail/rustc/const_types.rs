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

fn main() {}
