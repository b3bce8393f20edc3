use ratelimit_runtime::rate_limit;

struct User {
    id: u64,
}

#[rate_limit(period = 30, threshold = 2, key = "{user}")]
async fn not_display(user: User) -> Option<u64> {
    Some(user.id)
}

#[rate_limit(period = 30, threshold = 2, key = "{user.name}")]
async fn no_such_field(user: User) -> Option<u64> {
    Some(user.id)
}

#[rate_limit(period = 30, threshold = 2, key = "{id:q}")]
async fn no_such_trait(id: u64) -> Option<u64> {
    Some(id)
}

fn main() {}
