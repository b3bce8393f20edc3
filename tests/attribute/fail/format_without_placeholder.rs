use ratelimit_runtime::rate_limit;

// The name of an argument, the syntax of Spring, a typing error, and text without a relation to the
// arguments.

#[rate_limit(period = 30, threshold = 2, key = "user_id")]
async fn name_of_an_argument(user_id: u64) -> Option<u64> {
    Some(user_id)
}

#[rate_limit(period = 30, threshold = 2, key = "#id")]
async fn spring_syntax(name: String, id: u64) -> Option<(String, u64)> {
    Some((name, id))
}

#[rate_limit(period = 30, threshold = 2, key = "userId")]
async fn typo(user_id: u64) -> Option<u64> {
    Some(user_id)
}

#[rate_limit(period = 30, threshold = 2, key = "everybody")]
async fn constant() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, key = "proxies")]
async fn one_of_several(limiter: u64, peer: u64) -> Option<(u64, u64)> {
    Some((limiter, peer))
}

#[rate_limit(period = 30, threshold = 2, key = "")]
async fn empty() -> Option<()> {
    None
}

fn main() {}
