//! `settle`, `count_if`, `permit` and `block`.

use ratelimit_runtime::{Rejection, rate_limit};

#[rate_limit(period = 1, threshold = 10, settle = 5)]
async fn a_number() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 10, settle = "tokens")]
async fn a_text() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 10, settle = async |result| 5)]
async fn awaits() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 10, count_if = |result| async { true })]
async fn awaits_too() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 10, count_if = true)]
async fn a_flag() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 10, permit = "tokens")]
async fn a_name_in_quotes() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 10, permit = |permit| permit.settle(1))]
async fn a_closure() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 10, settle = |_| 1, count_if = Result::is_err)]
async fn twice() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 10, count_if = Result::is_err, permit = tokens)]
async fn twice_by_hand() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 10, settle = |_| 1, lease = 5)]
async fn leased() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 10, permit = tokens, lease = 5)]
async fn leased_by_hand() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 10, settle = |_| 1)]
async fn hidden() -> impl std::fmt::Debug {
    5
}

#[rate_limit(limit(period = 1, threshold = 10), settle = |_| 1)]
async fn beside_groups() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(limit(period = 1, threshold = 10), permit = tokens)]
async fn permit_beside_groups() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 10, settle = |_| prompt.len() as u64)]
async fn moved(prompt: String) -> Result<String, Rejection> {
    Ok(prompt)
}

#[rate_limit(period = 1, threshold = 10, block = "30s")]
async fn a_time() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 10, block = |_| None, lease = 5)]
async fn leased_and_blocked() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 10, block = |_| None)]
async fn hidden_from_block() -> impl std::fmt::Debug {
    5
}

#[rate_limit(period = 1, threshold = 10, block = |_| times.first().copied())]
async fn moved_before_block(times: Vec<std::time::Duration>) -> Result<(), Rejection> {
    drop(times);
    Ok(())
}

#[rate_limit(period = 1, threshold = 10, retry_after = |_| None)]
async fn another_word_for_block() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 10, actual_cost = |_| 1)]
async fn another_word() -> Result<(), Rejection> {
    Ok(())
}

fn main() {}
