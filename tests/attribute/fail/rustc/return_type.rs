use ratelimit_runtime::rate_limit;

struct Failure;

#[rate_limit(period = 30, threshold = 2)]
async fn plain() -> String {
    String::new()
}

#[rate_limit(period = 30, threshold = 2)]
async fn nothing() {}

#[rate_limit(period = 30, threshold = 2)]
async fn foreign_error() -> Result<(), Failure> {
    Ok(())
}

#[rate_limit(period = 30, threshold = 2)]
async fn hidden() -> impl std::fmt::Display {
    "hi"
}

fn main() {}
