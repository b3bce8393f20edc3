use ratelimit_runtime::rate_limit;

// Text that is an argument, text in Spring's way, a slip, and text that is nothing at all.

#[rate_limit(period = 30, threshold = 2, key = "user_id")]
async fn argument(user_id: u64) -> Option<u64> {
    Some(user_id)
}

#[rate_limit(period = 30, threshold = 2, key = "#id")]
async fn spring(name: String, id: u64) -> Option<(String, u64)> {
    Some((name, id))
}

#[rate_limit(period = 30, threshold = 2, key = "userId")]
async fn slip(user_id: u64) -> Option<u64> {
    Some(user_id)
}

#[rate_limit(period = 30, threshold = 2, key = "everybody")]
async fn constant() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, key = "")]
async fn empty() -> Option<()> {
    None
}

fn main() {}
