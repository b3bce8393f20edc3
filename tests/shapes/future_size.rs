//! The futures of annotated functions are small: a service holds one for each pending request.

use ratelimit_runtime::{Rejection, rate_limit};

#[rate_limit(period = 30, threshold = 2)]
async fn without_a_key() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 30, threshold = 2, key = user)]
async fn by_user(user: &str) -> Result<usize, Rejection> {
    Ok(user.len())
}

#[rate_limit(in_flight = 2, scope = "process", key = data.len())]
async fn in_flight(data: [u64; 32]) -> Result<usize, Rejection> {
    tokio::task::yield_now().await;
    Ok(data.len())
}

#[test]
fn a_call_in_flight_holds_its_arguments_twice() {
    let in_flight = size_of_val(&in_flight([0; 32]));
    assert!(in_flight <= 256 + 2 * size_of::<[u64; 32]>(), "{in_flight} bytes");
}

#[test]
fn a_future_holds_only_the_pending_decision() {
    assert!(size_of_val(&without_a_key()) <= 128, "{} bytes", size_of_val(&without_a_key()));
    // And the argument twice: as the caller passes it, and as the body receives it.
    let by_user = size_of_val(&by_user("alice"));
    assert!(by_user <= 128 + 2 * size_of::<&str>(), "{by_user} bytes");
}
