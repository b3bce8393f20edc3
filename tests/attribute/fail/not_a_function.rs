use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30, threshold = 2)]
struct User;

#[rate_limit(period = 30, threshold = 2)]
impl User {
    async fn load(&self) {}
}

#[rate_limit(period = 30, threshold = 2)]
pub mod service {}

#[rate_limit(period = 30, threshold = 2)]
const CALLS: u64 = 2;

#[rate_limit(period = 30, threshold = 2)]
unsafe trait Service {}

fn main() {
    let _ = (User.load(), CALLS);
}
