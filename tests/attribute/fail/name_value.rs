use ratelimit_runtime::rate_limit;

const NAME: &str = "login";

#[rate_limit(period = 30, threshold = 2, name = "")]
async fn empty() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, name = NAME)]
async fn constant() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, name = concat!("a", "b"))]
async fn expression() -> Option<()> {
    None
}

fn main() {}
