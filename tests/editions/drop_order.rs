//! The attribute changes nothing of a body in any edition: arguments, locals and temporaries are dropped in the order
//! in which the function drops them without the attribute. A package of each edition compiles this file.

#![deny(warnings)]

use std::cell::RefCell;
use std::fmt::Debug;

use ratelimit_runtime::{rate_limit, RateLimiter, Rejection};

thread_local! {
    static DROPPED: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

struct Recorder(&'static str);

impl Recorder {
    fn touch(&self) -> usize {
        self.0.len()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        DROPPED.with(|dropped| dropped.borrow_mut().push(self.0));
    }
}

/// A temporary that borrows: it must be dropped before what it borrows.
struct Borrowing<'a, T>(&'a T);

impl<T> Borrowing<'_, T> {
    fn size(&self) -> usize {
        std::mem::size_of_val(self.0)
    }
}

impl<T> Drop for Borrowing<'_, T> {
    fn drop(&mut self) {}
}

type Output = Result<usize, Rejection>;

/// Async functions with one body. It uses one argument, a field of another, and no others, and its last expression has
/// temporaries.
macro_rules! functions {
    ($output:ty, $wrap:path; $($name:ident $(#[$attribute:meta])*;)*) => {$(
        $(#[$attribute])*
        async fn $name(first: Recorder, _: Recorder, mut pair: (Recorder, Recorder), _last: Recorder) -> $output {
            let _local = Recorder("local");
            tokio::task::yield_now().await;
            pair.0.0 = "changed";
            $wrap(Recorder("temporary").touch() + pair.0.touch() + Borrowing(&first).size())
        }
    )*};
}

macro_rules! synchronous {
    ($output:ty, $wrap:path; $($name:ident $(#[$attribute:meta])*;)*) => {$(
        $(#[$attribute])*
        fn $name(first: Recorder, _: Recorder, mut pair: (Recorder, Recorder), _last: Recorder) -> $output {
            let _local = Recorder("local");
            pair.0.0 = "changed";
            $wrap(Recorder("temporary").touch() + pair.0.touch() + Borrowing(&first).size())
        }
    )*};
}

functions! {
    Output, Ok;
    plain;
    limited #[rate_limit(period = "1h", threshold = 1)];
    configured #[cfg_attr(all(), rate_limit(period = "1h", threshold = 1))];
    not_configured #[cfg_attr(any(), rate_limit(period = "1h", threshold = 1))];
    keyed #[rate_limit(period = "1h", threshold = 1, key = Recorder("key").touch())];
    counted #[rate_limit(period = "1h", threshold = 1, count_if = Result::is_ok)];
    blocked #[rate_limit(period = "1h", threshold = 1, block = |_| None)];
    by_hand #[rate_limit(period = "1h", threshold = 1, permit = _permit)];
    in_flight #[rate_limit(in_flight = 1, scope = "process")];
    grouped #[rate_limit(
        limit(period = "1h", threshold = 1, count_if = Result::is_ok),
        limit(in_flight = 1),
        scope = "process"
    )];
}

synchronous! {
    Output, Ok;
    synchronous_plain;
    synchronous_limited #[rate_limit(period = "1h", threshold = 1, scope = "process")];
    synchronous_configured #[cfg_attr(all(), rate_limit(period = "1h", threshold = 1, scope = "process"))];
    synchronous_counted #[rate_limit(period = "1h", threshold = 1, scope = "process", count_if = Result::is_ok)];
    synchronous_blocked #[rate_limit(period = "1h", threshold = 1, scope = "process", block = |_| None)];
    synchronous_by_hand #[rate_limit(period = "1h", threshold = 1, scope = "process", permit = _permit)];
    synchronous_in_flight #[rate_limit(in_flight = 1, scope = "process")];
}

// The body of an `impl Trait` moves into a block or a closure.
functions! {
    impl Debug, std::convert::identity;
    hidden_plain;
    hidden_limited #[rate_limit(period = "1h", threshold = 1)];
    hidden_in_flight #[rate_limit(in_flight = 1, scope = "process")];
}

synchronous! {
    impl Debug, std::convert::identity;
    synchronous_hidden_plain;
    synchronous_hidden_limited #[rate_limit(period = "1h", threshold = 1, scope = "process")];
}

/// The permit lives as long as an argument: temporaries of the last expression can borrow it.
#[rate_limit(period = "1h", threshold = 1, permit = permit)]
async fn borrows_the_permit() -> Output {
    Ok(Borrowing(&permit).size())
}

/// Bodies on one line.
#[rustfmt::skip]
#[rate_limit(period = "1h", threshold = 1)]
async fn one_line(a: usize) -> Output { Ok(a) }

#[rustfmt::skip]
#[rate_limit(period = "1h", threshold = 1, scope = "process")]
fn synchronous_one_line(a: usize) -> Option<usize> { Some(a) }

async fn run() {
    macro_rules! calls {
        ($call:ident => $value:expr; $($function:ident)*) => {
            vec![$((stringify!($function), {
                let pair = (Recorder("third"), Recorder("fourth"));
                let $call = $function(Recorder("first"), Recorder("second"), pair, Recorder("last"));
                drop($value);
                DROPPED.with(RefCell::take)
            })),*]
        };
    }
    let orders = [
        calls!(call => call.await; plain limited configured not_configured keyed counted blocked by_hand in_flight
            grouped),
        calls!(call => call.await; hidden_plain hidden_limited hidden_in_flight),
        calls!(call => call; synchronous_plain synchronous_limited synchronous_configured synchronous_counted
            synchronous_blocked synchronous_by_hand synchronous_in_flight),
        calls!(call => call; synchronous_hidden_plain synchronous_hidden_limited),
    ];
    let first = if env!("CARGO_PKG_NAME") == "edition-2024" { "temporary" } else { "local" };
    for calls in &orders {
        let (_, plain) = &calls[0];
        assert_eq!((plain.len(), plain[0]), (7, first));
        for (name, order) in calls {
            let order = order.strip_prefix(&["key"]).unwrap_or(order);
            assert_eq!(order, plain, "{name}");
        }
    }
    for (name, order) in calls!(call => call.await; limited keyed counted by_hand) {
        let order = order.strip_prefix(&["key"]).unwrap_or(&order);
        assert_eq!(order, ["last", "third", "fourth", "second", "first"], "a rejected {name}");
    }

    let size = std::mem::size_of::<ratelimit_runtime::Permit>();
    assert_eq!(borrows_the_permit().await.ok(), Some(size));
    assert_eq!((one_line(1).await.ok(), synchronous_one_line(1)), (Some(1), Some(1)));
}

#[tokio::test]
async fn keeps_the_drop_order() {
    RateLimiter::embedded().scope(run()).await;
}
