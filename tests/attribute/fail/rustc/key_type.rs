use ratelimit_runtime::rate_limit;

struct User {
    id: u64,
}

#[rate_limit(period = 30, threshold = 2, key = user)]
async fn alone(user: User) -> Option<u64> {
    Some(user.id)
}

#[rate_limit(period = 30, threshold = 2, key = (user.id, user))]
async fn in_a_tuple(user: User) -> Option<u64> {
    Some(user.id)
}

#[rate_limit(period = 30, threshold = 2, key = usr.id)]
async fn misspelled(user: User) -> Option<u64> {
    Some(user.id)
}

#[rate_limit(period = 30, threshold = 2, key = addr)]
async fn with_a_port(addr: std::net::SocketAddr) -> Option<u16> {
    Some(addr.port())
}

#[rate_limit(limit(period = 30, threshold = 2), limit(period = 60, threshold = 3, key = user), key = 1)]
async fn in_a_group(user: User) -> Option<u64> {
    Some(user.id)
}

fn main() {}
