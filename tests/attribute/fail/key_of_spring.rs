use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30, threshold = 2, key = #user_id)]
async fn by_user(user_id: u64) -> Option<u64> {
    Some(user_id)
}

#[rate_limit(period = 30, threshold = 2, key = "#user_id")]
async fn by_text(user_id: u64) -> Option<u64> {
    Some(user_id)
}

fn main() {}
