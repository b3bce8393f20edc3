//! Redis, the embedded store and the model make the same decisions on long logs.

use std::time::Duration;

use support::limits::HOUR;
use support::model::Model;
use support::server::Server;

use super::{Request, SEGMENT, StorePair, assert_keys_are_bounded, keys, limit};

#[tokio::test]
async fn stores_agree_on_long_logs() {
    let server = Server::start();
    let stores = StorePair::on(&server);
    let mut connection = server.connection();
    let second = Duration::from_secs(1);
    let wide = limit(20_000);

    // The log grows. A cost waits for an entry in the middle, and at both ends of blocks and segments.
    stores.fill(&wide, 3 * SEGMENT + 100, Duration::from_millis(100)).await;
    assert_eq!(keys(&mut connection).len(), 4);
    assert_keys_are_bounded(&mut connection);
    let used = 20_000 - stores.compare(&wide, Request::Peek(0)).await.remaining;
    assert_eq!(used, 3 * SEGMENT + 100);
    let free = 20_000 - used;
    for behind in [1, 2, 63, 64, 65, 128, 4_000, 4_095, 4_096, 4_097, 8_192, 12_288, 12_289, used] {
        let rejected = stores.compare(&wide, Request::Check(free + behind)).await;
        assert!(!rejected.allowed);
    }

    // Thresholds below and above the used units.
    for threshold in [1, 64, 4_096, 5_000, 12_000, 12_388, 12_389, 40_000] {
        for cost in [1, threshold.min(100), threshold] {
            stores.compare(&limit(threshold), Request::Peek(cost)).await;
        }
    }

    // A few entries leave the window, then more than a block, then more than a segment.
    stores.clock.advance(HOUR - second * 1_238);
    for wait in [1, 1, 2, 3, 10, 100, 100, 500] {
        stores.clock.advance(second * wait);
        stores.compare(&wide, Request::Check(free)).await;
        stores.compare(&wide, Request::Check(1)).await;
    }
    assert_keys_are_bounded(&mut connection);
    assert_eq!(keys(&mut connection).len(), 3, "segments that have left the window are deleted");

    // Refunds take the newest units, returns those of a time.
    for cost in [1, 2, 65, 3_000] {
        stores.compare(&wide, Request::Refund(cost)).await;
        let ago = |ago: Duration| (stores.clock.now() - ago).as_micros() as u64;
        stores.compare(&wide, Request::Return(cost, ago(second))).await;
        stores.compare(&wide, Request::Return(cost, ago(Duration::ZERO))).await;
        stores.compare(&wide, Request::Check(20_000)).await;
        stores.fill(&wide, 70, second / 100).await;
    }
    stores.compare(&wide, Request::Return(1, 7)).await;
    assert_keys_are_bounded(&mut connection);

    // All entries leave at once, and a new log begins.
    stores.clock.advance(HOUR * 2);
    stores.compare(&wide, Request::Check(3)).await;
    stores.fill(&wide, 100, second).await;
    stores.reset(&wide).await;
    stores.fill(&wide, 2 * SEGMENT, second / 100).await;
    stores.compare(&wide, Request::Refund(SEGMENT)).await;
    stores.compare(&wide, Request::Refund(20_000)).await;
    assert_eq!(keys(&mut connection), [""; 0]);
}

/// The window slides over a log of constant length: rings wrap, and segments are created and deleted.
#[tokio::test]
async fn stores_agree_while_a_long_log_slides() {
    let server = Server::start();
    let stores = StorePair::on(&server);
    let mut connection = server.connection();
    let limit = limit(5_000);
    let apart = HOUR / 5_000;
    stores.fill(&limit, 15_000, apart).await;
    // Entries of other costs, with pauses.
    for round in 1..2_000_u32 {
        stores.compare(&limit, Request::Check(1 + round * 7 % 13)).await;
        stores.clock.advance(apart * (round % 3 * 7));
    }
    assert_keys_are_bounded(&mut connection);
    assert!(keys(&mut connection).len() <= 3);
}

/// The model keeps each entry and is slow, so it decides only once the log is long.
#[tokio::test]
async fn stores_agree_with_the_model_on_long_logs() {
    let server = Server::start();
    let stores = StorePair::on(&server);
    let mut connection = server.connection();
    let limits = [9_500, 9_000, 4_100, 100, 20_000].map(limit);
    let mut model = Model::new(&limits[0], None);
    for index in 0..2 * SEGMENT + 700 {
        let cost = 1 + index / 63 % 2 * (index % 2);
        let clock = stores.clock.now().as_micros() as u64;
        model.charge(&limits[4], clock, cost);
        assert!(stores.compare(&limits[4], Request::Check(cost)).await.allowed);
        stores.clock.advance(HOUR / 10_000);
    }
    // Pseudorandom numbers, equal in each run.
    let mut random = 7_u32;
    let mut next = |below: u32| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 8) % below
    };
    for step in 0..120 {
        let limit = &limits[next(5) as usize];
        let cost = [1, 2, 64, 500, 4_000][next(5) as usize].min(limit.threshold());
        let charged = model.charged_at();
        let at = charged.get(next(10_000) as usize % charged.len().max(1)).copied().unwrap_or(7);
        let request = match next(8) {
            0..=3 => Request::Check(cost),
            4..=5 => Request::Peek(cost),
            6 => Request::Refund(cost / 2),
            _ => Request::Return(cost / 2, at),
        };
        let got = stores.compare(limit, request).await;
        let clock = stores.clock.now().as_micros() as u64;
        let expected = match request {
            Request::Check(cost) => model.check(limit, clock, cost),
            Request::Peek(cost) => model.peek(limit, clock, cost),
            Request::Refund(cost) => model.refund(limit, clock, cost),
            Request::Return(cost, at) => model.return_units(limit, clock, cost, at),
        };
        assert_eq!(got, expected, "step {step}: {request:?} under {limit:?}");
        stores.clock.advance(HOUR / 10_000 * [0, 1, 2, 70, 500][next(5) as usize]);
    }
    assert_keys_are_bounded(&mut connection);
}

/// Calls that give back all of their units, at both ends of the log and at the ends of segments, one after the other.
#[tokio::test]
async fn entries_without_units_do_not_count() {
    let server = Server::start();
    let stores = StorePair::on(&server);
    let mut connection = server.connection();
    let (wide, apart) = (limit(20_000), HOUR / 20_000);
    let mut model = Model::new(&wide, None);
    let now = || stores.clock.now().as_micros() as u64;
    let mut charged = Vec::new();
    for _ in 0..3 * SEGMENT + 500 {
        charged.push(now());
        model.charge(&wide, now(), 1);
        assert!(stores.compare(&wide, Request::Check(1)).await.allowed);
        stores.clock.advance(apart);
    }
    let segment = SEGMENT as usize;
    let end = charged.len();
    let runs = [
        // In the middle of a segment, over the end of one, a whole one, the newest, the oldest.
        segment + 100..segment + 300,
        2 * segment - 70..2 * segment + 70,
        2 * segment + 70..3 * segment,
        end - 510..end,
        0..200,
        200..segment + 20,
    ];
    for run in runs {
        for (index, at) in charged[run.clone()].iter().enumerate() {
            let store = stores.compare(&wide, Request::Return(2, *at)).await;
            model.lower(&wide, now(), 2, *at);
            if index % 997 == 0 || index + 1 == run.len() {
                let left = model.peek(&wide, now(), 0);
                assert_eq!(store, left, "{run:?} {index}");
            }
        }
        // The first unit that leaves is the oldest that is left.
        let left = 20_000 - stores.compare(&wide, Request::Peek(0)).await.remaining;
        for excess in [1, 2, 64, left] {
            let limit = limit(left - left.min(excess) + 1);
            let store = stores.compare(&limit, Request::Peek(1)).await;
            assert_eq!(store, model.peek(&limit, now(), 1), "{run:?} {excess}");
        }
        stores.clock.advance(apart * 3);
        model.charge(&wide, now(), 1);
        assert!(stores.compare(&wide, Request::Check(1)).await.allowed);
    }
    for _ in 0..10 {
        stores.clock.advance(HOUR / 12);
        let expected = model.peek(&wide, now(), 20_000);
        assert_eq!(stores.compare(&wide, Request::Peek(20_000)).await, expected);
    }
    assert_keys_are_bounded(&mut connection);
}

/// The first permit comes at the given length of the log: it makes room for the birth of its state.
#[tokio::test]
async fn charges_in_long_logs_are_settled() {
    let server = Server::start();
    let mut connection = server.connection();
    for first in [0, 100, SEGMENT + 100, 2 * SEGMENT - 1] {
        let stores = StorePair::on(&server);
        let (wide, mut random, mut permits) = (limit(50_000), u64::from(first) + 1, Vec::new());
        let mut next = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % bound
        };
        for call in 0..5 * SEGMENT / 2 {
            let cost = next(4) as u32 + 1;
            if call < first {
                stores.compare(&wide, Request::Check(cost)).await;
            } else {
                let embedded = stores.embedded.acquire(&wide, "key", cost).await.expect("admitted");
                let redis = stores.redis.acquire(&wide, "key", cost).await.expect("admitted");
                permits.push((embedded, redis, cost));
            }
            if next(3) == 0 && !permits.is_empty() {
                let (embedded, redis, cost) =
                    permits.swap_remove(next(permits.len() as u64) as usize);
                let used = [0, cost - 1, cost + 1][next(3) as usize];
                embedded.settle(used);
                redis.settle(used);
                // A debt counts from the moment at which Redis settles it.
                stores.redis.flush().await.expect("a reply");
            }
            if call % 50 == 0 {
                stores.compare(&wide, Request::Peek(next(50_000) as u32)).await;
            }
            // The window passes over half of the log.
            stores.clock.advance(HOUR / 6_000 * next(2) as u32);
        }
        assert!(keys(&mut connection).len() > 1, "the log has segments");
        stores.reset(&wide).await;
        assert_eq!(keys(&mut connection), [""; 0]);
    }
}
