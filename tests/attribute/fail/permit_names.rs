use ratelimit_runtime::{Rejection, rate_limit};

#[rate_limit(period = 1, threshold = 10, permit = tokens)]
async fn named_as_an_argument((_, tokens): (u8, u64)) -> Result<u64, Rejection> {
    Ok(tokens)
}

#[rate_limit(
    limit(period = 1, threshold = 10, permit = tokens),
    limit(period = 60, threshold = 10, permit = tokens)
)]
async fn named_twice() -> Result<(), Rejection> {
    tokens.settle(1);
    Ok(())
}

fn main() {}
