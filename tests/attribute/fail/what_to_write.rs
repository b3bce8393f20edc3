use ratelimit_runtime::{Limit, Rejection, rate_limit};

const LOGIN: Limit = Limit::fixed("login", 1, std::time::Duration::from_secs(1));

#[rate_limit(limit(period = 1, threshold = 5) limit(period = 60, threshold = 1))]
async fn no_comma() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(limit(period = 1, threshold = 5) key = user)]
async fn key_after_a_group(user: u8) -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(limit(period = 1, threshold = 5) && limit(period = 60, threshold = 1))]
async fn operator() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 5, name = "export.{user}")]
async fn name_of_a_key(user: u8) -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 5, permits = 2)]
async fn permits() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 5, on_limited = "busy")]
async fn quoted_function() -> u8 {
    1
}

#[rate_limit(period = 1, threshold = 5, on_limited = busy(user))]
async fn called_function(user: u8) -> u8 {
    user
}

#[rate_limit(period = 1, threshold = 5, key = user, tenant)]
async fn two_keys(user: u8, tenant: u8) -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 5, scope = "process")]
const fn constant() -> Option<()> {
    Some(())
}

#[rate_limit(period = 1, threshold = 5, wait = 0)]
async fn no_wait() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(LOGIN)]
async fn constant_without_name() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(limit = "LOGIN")]
async fn quoted_constant() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 5, fallback = busy)]
async fn fallback() -> u8 {
    1
}

fn main() {}
