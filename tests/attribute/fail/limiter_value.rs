use ratelimit_runtime::rate_limit;

struct State {
    limiter: String,
}

#[rate_limit(period = 30, threshold = 2, limiter = "redis")]
async fn text() -> Option<()> {
    None
}

#[rate_limit(limit(period = 30, threshold = 2, limiter = state.limiter))]
async fn in_a_group(state: State) -> Option<()> {
    drop(state);
    None
}

fn main() {}
