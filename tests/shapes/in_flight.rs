//! `in_flight`: a call holds its slot until the function ends, in any way.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
use ratelimit_runtime::{Limit, Permit, RateLimiter, Rejection, rate_limit};
use tokio::sync::oneshot::{Receiver, channel};

#[rate_limit(in_flight = 2, hold = "30s", key = tenant, name = "exports")]
async fn export(tenant: &str, until: Receiver<bool>) -> Result<u32, Rejection> {
    let length = tenant.len() as u32;
    assert!(until.await.unwrap_or(true), "the export fails");
    Ok(length)
}

const EXPORTS: Limit = Limit::in_flight("exports", 2).hold(Duration::from_secs(30));

async fn in_flight(limiter: &RateLimiter, limit: &Limit) -> u32 {
    let peeked = limiter.peek(limit, "acme", 0).await.expect("admitted");
    peeked.limit - peeked.remaining
}

/// Returns a receiver whose sender is gone.
fn ended<T>() -> Receiver<T> {
    channel().1
}

fn is_busy<T>(result: &Result<T, Rejection>) -> bool {
    matches!(result, Err(Rejection::Busy { .. }))
}

#[tokio::test]
async fn a_call_holds_its_slot_until_its_end() {
    let limiter = RateLimiter::embedded();
    limiter
        .scope(async {
            let (returns, until) = channel();
            let mut returned = Box::pin(export("acme", until));
            assert!((&mut returned).now_or_never().is_none());
            let (panics, until) = channel();
            let mut panicked = Box::pin(AssertUnwindSafe(export("acme", until)).catch_unwind());
            assert!((&mut panicked).now_or_never().is_none());
            assert!(is_busy(&export("acme", ended()).await));
            assert!(export("other", ended()).await.is_ok());

            returns.send(true).expect("it waits");
            assert_eq!(returned.await.expect("admitted"), 4);
            assert_eq!(in_flight(&limiter, &EXPORTS).await, 1);
            panics.send(false).expect("it waits");
            panicked.await.expect_err("a panic");
            assert_eq!(in_flight(&limiter, &EXPORTS).await, 0);

            let (_sender, until) = channel();
            let mut dropped = Box::pin(export("acme", until));
            assert!((&mut dropped).now_or_never().is_none());
            assert_eq!(in_flight(&limiter, &EXPORTS).await, 1);
            drop(dropped);
            assert_eq!(in_flight(&limiter, &EXPORTS).await, 0);
        })
        .await;
}

#[rate_limit(
    limit(period = "1m", threshold = 3, key = tenant, settle = |result| *result.as_ref().unwrap_or(&0)),
    limit(in_flight = 1, hold = "1m", key = tenant, name = "together"),
    cost = 1
)]
async fn rated(tenant: &str, uses: u32, until: Receiver<()>) -> Result<u32, Rejection> {
    let _ = until.await;
    let _ = tenant;
    Ok(uses)
}

/// The rate is settled by the result, and the slot is free.
#[tokio::test]
async fn a_rate_is_settled_beside_calls_in_flight() {
    RateLimiter::embedded()
        .scope(async {
            let (_sender, until) = channel();
            let mut first = Box::pin(rated("acme", 0, until));
            assert!((&mut first).now_or_never().is_none());
            assert!(is_busy(&rated("acme", 0, ended()).await));
            drop(first);
            for _ in 0..5 {
                rated("acme", 0, ended()).await.expect("settled to 0");
            }
            for _ in 0..2 {
                rated("acme", 1, ended()).await.expect("two are left");
            }
            let limited = rated("acme", 1, ended()).await;
            assert!(matches!(limited, Err(Rejection::Limited { .. })), "{limited:?}");
        })
        .await;
}

struct Plan {
    most: Option<u32>,
}

#[rate_limit(in_flight = plan.most, scope = "process", cost = weight, key = 7)]
async fn of_a_plan(plan: &Plan, weight: u32, until: Receiver<()>) -> Result<(), Rejection> {
    let _ = until.await;
    Ok(())
}

#[tokio::test]
async fn each_call_can_compute_how_many_run() {
    RateLimiter::embedded()
        .scope(async {
            let (small, none, closed) =
                (Plan { most: Some(3) }, Plan { most: None }, Plan { most: Some(0) });
            let (_sender, until) = channel();
            let mut first = Box::pin(of_a_plan(&small, 2, until));
            assert!((&mut first).now_or_never().is_none());
            assert!(is_busy(&of_a_plan(&small, 2, ended()).await));
            assert!(of_a_plan(&small, 1, ended()).await.is_ok());
            assert!(of_a_plan(&none, 9, ended()).await.is_ok());
            let closed = of_a_plan(&closed, 1, ended()).await;
            assert!(matches!(closed, Err(Rejection::Closed { .. })), "{closed:?}");
        })
        .await;
}

const MOST: u32 = 1;
const HOLD: Duration = Duration::from_secs(10);

#[rate_limit(in_flight = MOST, hold = HOLD, permit = slot)]
async fn hands_on() -> Result<Permit, Rejection> {
    Ok(slot)
}

#[rate_limit(limit = EXPORTS, key = tenant, permit = _slot)]
async fn of_a_constant(tenant: &str, until: Receiver<()>) -> Result<(), Rejection> {
    let _ = until.await;
    Ok(())
}

/// A body that takes the permit holds the slot for as long as it likes.
#[tokio::test]
async fn a_permit_can_outlive_the_function() {
    RateLimiter::embedded()
        .scope(async {
            let slot = hands_on().await.expect("admitted");
            assert!(is_busy(&hands_on().await));
            drop(slot);
            assert!(hands_on().await.is_ok());

            let (_one, until) = channel();
            let mut first = Box::pin(of_a_constant("acme", until));
            assert!((&mut first).now_or_never().is_none());
            let (_other, until) = channel();
            let mut second = Box::pin(of_a_constant("acme", until));
            assert!((&mut second).now_or_never().is_none());
            assert!(is_busy(&of_a_constant("acme", ended()).await));
        })
        .await;
}

#[rate_limit(in_flight = 1, scope = "process")]
fn not_async(depth: u32) -> Option<u32> {
    if depth == 0 { Some(0) } else { not_async(depth - 1).map(|it| it + 1) }
}

#[rate_limit(in_flight = 1, scope = "process")]
async fn questions(fails: bool) -> Result<(), Box<dyn std::error::Error>> {
    if fails {
        "text".parse::<u32>()?;
    }
    Ok(())
}

#[rate_limit(in_flight = 1, scope = "process")]
async fn hidden_type() -> impl std::fmt::Debug {
    0..3
}

#[tokio::test]
async fn every_shape_frees_its_slot() {
    RateLimiter::embedded()
        .scope(async {
            // A call within the call finds the slot taken.
            assert_eq!(not_async(1), None);
            assert_eq!(not_async(0), Some(0));
            for _ in 0..3 {
                questions(true).await.expect_err("not a number");
                questions(false).await.expect("admitted");
                assert_eq!(format!("{:?}", hidden_type().await), "Ok(0..3)");
            }
        })
        .await;
}

#[rate_limit(in_flight = 1, scope = "process", wait = "20s")]
async fn one_by_one(running: &std::sync::atomic::AtomicU32) -> Result<u32, Rejection> {
    use std::sync::atomic::Ordering::SeqCst;
    let others = running.fetch_add(1, SeqCst);
    tokio::time::sleep(Duration::from_millis(1)).await;
    running.fetch_sub(1, SeqCst);
    Ok(others)
}

#[tokio::test]
async fn calls_wait_for_a_slot() {
    let running = std::sync::atomic::AtomicU32::new(0);
    let calls = (0..50).map(|_| one_by_one(&running));
    RateLimiter::embedded()
        .scope(async {
            for others in futures::future::join_all(calls).await {
                assert_eq!(others.expect("admitted in time"), 0);
            }
        })
        .await;
}
