//! Items and variables of the user that have the names of the expansion: neither affects the other.

#![allow(unused, nonstandard_style, reason = "the names of the expansion")]
#![no_implicit_prelude]

use ::std::{assert, assert_eq};

mod core {}
mod std {}
mod ratelimit_runtime {}

struct Result;
struct Option;
struct String;
struct Some;
struct Send;
trait Future {}
trait From {}
fn Ok() {}
fn Err() {}
fn check() {}
fn refuse() {}

macro_rules! concat {
    () => {};
}
macro_rules! module_path {
    () => {};
}
macro_rules! format_args {
    () => {};
}

type Outcome<T> = ::core::result::Result<T, ::ratelimit_runtime::Rejection>;

const SITE: u64 = 1;

#[::ratelimit_runtime::rate_limit(
    period = "1h",
    threshold = SITE,
    key = (pending, "{rejection}{output}"),
    cost = limit
)]
async fn variables(pending: u8, rejection: u8, limit: u64, key: u8, output: u8) -> Outcome<u64> {
    let pending = <u64 as ::core::convert::From<u8>>::from(pending);
    ::core::result::Result::Ok(pending + limit)
}

#[::ratelimit_runtime::rate_limit(period = "1h", threshold = 1, key = "{pending}{output}")]
async fn hidden(pending: u8, output: u8) -> impl ::core::fmt::Debug {
    let rejection = pending + output;
    rejection
}

#[::ratelimit_runtime::rate_limit(
    period = "1h",
    threshold = 1,
    key = "{rejection}",
    on_limited = |_| rejection
)]
async fn with_on_limited(rejection: u8) -> u8 {
    rejection + 1
}

async fn run() {
    assert_eq!(variables(1, 2, 1, 4, 5).await.unwrap(), 2);
    assert!(variables(1, 2, 1, 4, 5).await.is_err());
    assert_eq!(::std::format!("{:?}", hidden(1, 2).await), "Ok(3)");
    assert!(::std::format!("{:?}", hidden(1, 2).await).starts_with("Err("));
    assert_eq!((with_on_limited(1).await, with_on_limited(1).await), (2, 1));
}

#[test]
fn keeps_names_of_the_user_apart() {
    let limited = ::ratelimit_runtime::RateLimiter::embedded().scope(run());
    let runtime = ::tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(limited);
}
