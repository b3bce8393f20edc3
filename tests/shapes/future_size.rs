//! The futures of annotated functions are small: a service holds one for each pending request. They hold the pending
//! decision, and each argument twice: as the caller passes it, and as the body receives it.

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
fn a_future_holds_the_pending_decision_and_its_arguments() {
    let sizes = [
        (size_of_val(&without_a_key()), 128),
        (size_of_val(&by_user("alice")), 128 + 2 * size_of::<&str>()),
        (size_of_val(&in_flight([0; 32])), 256 + 2 * size_of::<[u64; 32]>()),
    ];
    assert!(sizes.iter().all(|(size, most)| size <= most), "{sizes:?}");
}
