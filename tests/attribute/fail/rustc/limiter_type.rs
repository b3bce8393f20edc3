use ratelimit_runtime::rate_limit;

struct State {
    limiter: String,
}

#[rate_limit(period = 30, threshold = 2, limiter = state.limiter)]
async fn another_type(state: State) -> Option<()> {
    drop(state);
    None
}

fn main() {}
