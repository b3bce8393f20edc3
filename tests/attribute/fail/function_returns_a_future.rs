use std::future::Future;
use std::pin::Pin;

use ratelimit_runtime::rate_limit;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T>>>;

#[rate_limit(period = 30, threshold = 2)]
fn opaque(id: u64) -> impl Future<Output = Option<u64>> + Send {
    async move { Some(id) }
}

#[rate_limit(period = 30, threshold = 2, scope = "process")]
fn opaque_of_a_process(id: u64) -> impl Future<Output = Option<u64>> {
    async move { Some(id) }
}

#[rate_limit(period = 30, threshold = 2)]
fn boxed_after_a_statement(id: u64) -> Pin<Box<dyn Future<Output = Option<u64>> + Send>> {
    let next = id + 1;
    Box::pin(async move { Some(next) })
}

#[rate_limit(period = 30, threshold = 2)]
fn boxed_without_move() -> BoxFuture<Option<u64>> {
    Box::pin(async { Some(1) })
}

fn main() {}
