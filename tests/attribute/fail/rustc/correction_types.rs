//! Functions of the return value that have another type, and arguments that the body has moved.

use ratelimit_runtime::{Rejection, rate_limit};

#[rate_limit(period = 1, threshold = 10, settle = |result: &u64| *result)]
async fn another_argument() -> Result<u64, Rejection> {
    Ok(1)
}

#[rate_limit(period = 1, threshold = 10, settle = |result| result.is_ok())]
async fn another_result() -> Result<u64, Rejection> {
    Ok(1)
}

#[rate_limit(period = 1, threshold = 10, count_if = Result::ok)]
async fn another_function() -> Result<u64, Rejection> {
    Ok(1)
}

#[rate_limit(period = 1, threshold = 10, settle = |_| prompt.text.len() as u64)]
async fn moved(prompt: Prompt) -> Result<String, Rejection> {
    Ok(prompt.text)
}

struct Prompt {
    text: String,
}

#[rate_limit(period = 1, threshold = 10, block = |_| std::time::Duration::ZERO)]
async fn blocks_always() -> Result<u64, Rejection> {
    Ok(5)
}

fn main() {}
