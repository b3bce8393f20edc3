use ratelimit_runtime::rate_limit;

#[rate_limit(30, 2)]
async fn numbers() -> Option<()> {
    None
}

#[rate_limit(10)]
async fn one_number() -> Option<()> {
    None
}

#[rate_limit(10, period = 60)]
async fn beside_a_name() -> Option<()> {
    None
}

#[rate_limit(0.5)]
async fn no_whole_number() -> Option<()> {
    None
}

fn main() {}
