//! `in_flight`: a call holds its slot until the function ends, in any way.

use std::cell::RefCell;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use ratelimit_runtime::{Limit, Permit, RateLimiter, Rejection, Scope, rate_limit};
use tokio::sync::oneshot::{Receiver, Sender, channel};

const EXPORTS: Limit = Limit::in_flight("exports", 2).hold(Duration::from_secs(30));

#[rate_limit(in_flight = 2, hold = "30s", key = tenant, name = "exports")]
async fn export(tenant: &str, until: Receiver<bool>) -> Result<u64, Rejection> {
    let length = tenant.len() as u64;
    assert!(until.await.unwrap_or(true), "the export fails");
    Ok(length)
}

async fn in_flight(limiter: &RateLimiter) -> u64 {
    let peeked = limiter.peek(&EXPORTS, "acme", 0).await.expect("admitted");
    peeked.limit - peeked.remaining
}

fn ended<T>() -> Receiver<T> {
    channel().1
}

/// Starts a call that runs until the sender is used or dropped.
fn start<T, F: Future>(call: impl FnOnce(Receiver<T>) -> F) -> (Sender<T>, Pin<Box<F>>) {
    let (sender, until) = channel();
    let mut call = Box::pin(call(until));
    assert!(call.as_mut().now_or_never().is_none(), "it runs");
    (sender, call)
}

fn is_busy<T>(result: &Result<T, Rejection>) -> bool {
    matches!(result, Err(Rejection::Busy { .. }))
}

#[tokio::test]
async fn a_call_holds_its_slot_until_its_end() {
    let limiter = RateLimiter::embedded();
    let run = async {
        let (returns, returned) = start(|until| export("acme", until));
        let (panics, panicked) =
            start(|until| AssertUnwindSafe(export("acme", until)).catch_unwind());
        assert!(is_busy(&export("acme", ended()).await));
        assert!(export("other", ended()).await.is_ok());

        returns.send(true).expect("it waits");
        assert_eq!(returned.await.expect("admitted"), 4);
        assert_eq!(in_flight(&limiter).await, 1);
        panics.send(false).expect("it waits");
        panicked.await.expect_err("a panic");
        assert_eq!(in_flight(&limiter).await, 0);

        let (_sender, dropped) = start(|until| export("acme", until));
        assert_eq!(in_flight(&limiter).await, 1);
        drop(dropped);
        assert_eq!(in_flight(&limiter).await, 0);
    };
    limiter.scope(run).await;
}

#[rate_limit(
    limit(period = "1m", threshold = 3, key = tenant, settle = |result| *result.as_ref().unwrap_or(&0)),
    limit(in_flight = 1, hold = "1m", key = tenant, name = "together"),
    cost = 1
)]
async fn rated(tenant: &str, uses: u64, until: Receiver<()>) -> Result<u64, Rejection> {
    let _ = until.await;
    let _ = tenant;
    Ok(uses)
}

#[tokio::test]
async fn a_rate_is_settled_beside_calls_in_flight() {
    let (_sender, first) = start(|until| rated("acme", 0, until));
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
}

#[rate_limit(in_flight = most, scope = "process", cost = weight, key = 7)]
async fn of_a_plan(most: Option<u64>, weight: u64, until: Receiver<()>) -> Result<(), Rejection> {
    let _ = until.await;
    Ok(())
}

#[tokio::test]
async fn each_call_can_compute_how_many_run() {
    let (_sender, _first) = start(|until| of_a_plan(Some(3), 2, until));
    assert!(is_busy(&of_a_plan(Some(3), 2, ended()).await));
    assert!(of_a_plan(Some(3), 1, ended()).await.is_ok());
    assert!(of_a_plan(None, 9, ended()).await.is_ok());
    let blocked = of_a_plan(Some(0), 1, ended()).await;
    assert!(matches!(blocked, Err(Rejection::Blocked { .. })), "{blocked:?}");
}

const MOST: u64 = 1;
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
    let slot = hands_on().await.expect("admitted");
    assert!(is_busy(&hands_on().await));
    drop(slot);
    assert!(hands_on().await.is_ok());

    let _calls = [(); 2].map(|()| start(|until| of_a_constant("acme", until)));
    assert!(is_busy(&of_a_constant("acme", ended()).await));
}

const OUTLIVED: Limit = Limit::in_flight("outlived", 1).scope(Scope::Process);

thread_local! {
    /// How many slots were taken when each argument was dropped.
    static TAKEN: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

fn taken(limiter: &RateLimiter) -> u64 {
    let peeked = limiter.peek(&OUTLIVED, (), 0).now_or_never().expect("decided by this process");
    let decision = peeked.expect("admitted");
    decision.limit - decision.remaining
}

struct Argument(RateLimiter);

impl Drop for Argument {
    fn drop(&mut self) {
        TAKEN.with_borrow_mut(|seen| seen.push(taken(&self.0)));
    }
}

type Pair = (Argument, Argument);

struct Wrapped(Argument);

/// Functions that end when `until` does, and drop some of their arguments before.
macro_rules! outlived {
    ($($name:ident($($more:tt)*) -> $output:ty;)*) => {$(
        #[rate_limit(in_flight = 1, scope = "process", name = "outlived" $($more)*)]
        async fn $name(
            first: Argument,
            _: Argument,
            (third, _): Pair,
            mut last: Argument,
            until: Receiver<()>,
        ) -> $output {
            let _ = until.await;
            drop(std::mem::replace(&mut last.0, third.0.clone()));
            drop(first);
            Some(())
        }
    )*};
}

outlived! {
    of_a_function() -> Option<()>;
    by_hand(, permit = _slot) -> Option<()>;
    of_a_hidden_type() -> impl std::fmt::Debug;
}

#[rate_limit(
    limit(in_flight = 1, name = "outlived"),
    limit(period = "1h", threshold = 99, count_if = Option::is_some),
    scope = "process"
)]
async fn counted(
    _: Argument,
    (second, _): Pair,
    last: Argument,
    until: Receiver<()>,
) -> Option<()> {
    let _ = until.await;
    drop((second, last));
    Some(())
}

#[rate_limit(in_flight = 1, scope = "process", name = "outlived")]
fn synchronous(first: Argument, _: Argument, (third, _): Pair, mut last: Argument) -> Option<()> {
    drop(std::mem::replace(&mut last.0, third.0.clone()));
    drop(first);
    Some(())
}

#[rate_limit(in_flight = 1, scope = "process", name = "outlived")]
fn boxed(first: Argument, until: Receiver<()>) -> Pin<Box<dyn Future<Output = Option<()>>>> {
    Box::pin(async move {
        let _ = until.await;
        let _ = &first;
        Some(())
    })
}

impl Argument {
    #[rate_limit(in_flight = 1, scope = "process", name = "outlived")]
    async fn consumed(mut self, (_, other): Pair, until: Receiver<()>) -> Option<()> {
        let _ = until.await;
        drop(std::mem::replace(&mut self.0, other.0.clone()));
        Some(())
    }

    limited! {
        (in_flight = 1, scope = "process", name = "outlived")
            async fn shared(self: Arc<Self>, _: Argument, until: Receiver<()>) -> Option<()> {
                until.await.ok().or(Some(()))
            }
        (in_flight = 1, scope = "process", name = "outlived")
            fn consumed_at_once(self, _: Argument) -> Option<()> { Some(()) }
    }
}

#[async_trait::async_trait(?Send)]
trait Export {
    async fn export(&self, first: Argument, wrapped: Wrapped, until: Receiver<()>) -> Option<()>;
}

#[async_trait::async_trait(?Send)]
impl Export for () {
    #[rate_limit(in_flight = 1, scope = "process", name = "outlived")]
    async fn export(
        &self,
        _: Argument,
        Wrapped(second): Wrapped,
        until: Receiver<()>,
    ) -> Option<()> {
        let _ = until.await;
        drop(second);
        Some(())
    }
}

/// A slot is free once the arguments are dropped, whether the call ends or its future is dropped.
#[tokio::test]
async fn a_slot_outlives_the_arguments() {
    let limiter = RateLimiter::embedded();
    let one = || Argument(limiter.clone());
    let pair = || (one(), one());
    #[track_caller]
    fn assert_outlived(limiter: &RateLimiter, name: &str, arguments: usize) {
        assert_eq!(TAKEN.take(), vec![1; arguments], "{name}");
        assert_eq!(taken(limiter), 0, "{name}");
    }
    macro_rules! assert_async {
        ($arguments:literal, $call:expr) => {
            let _ = $call(ended()).await;
            assert_outlived(&limiter, stringify!($call), $arguments);
            let (_sender, dropped) = start($call);
            drop(dropped);
            assert_outlived(&limiter, stringify!($call), $arguments);
        };
    }
    let run = async {
        assert_async!(5, |until| of_a_function(one(), one(), pair(), one(), until));
        assert_async!(5, |until| by_hand(one(), one(), pair(), one(), until));
        assert_async!(5, |until| of_a_hidden_type(one(), one(), pair(), one(), until));
        assert_async!(4, |until| counted(one(), pair(), one(), until));
        assert_async!(1, |until| boxed(one(), until));
        assert_async!(3, |until| one().consumed(pair(), until));
        assert_async!(2, |until| Arc::new(one()).shared(one(), until));
        assert_async!(2, |until| ().export(one(), Wrapped(one()), until));
        assert!(synchronous(one(), one(), pair(), one()).is_some());
        assert_outlived(&limiter, "synchronous", 5);
        assert!(one().consumed_at_once(one()).is_some());
        assert_outlived(&limiter, "consumed_at_once", 2);
    };
    limiter.scope(run).await;
}
