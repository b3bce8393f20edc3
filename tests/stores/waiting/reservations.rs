//! `wait` on a bucket: a process reserves the moments of its waiting calls, up to a second ahead. Calls are admitted in
//! the order of their arrival and within their waits, and a dropped call cancels its reservation.

use tokio::task::{AbortHandle, JoinError};

use super::*;

const TICK: Duration = Duration::from_millis(10);

/// The time at which a fleet starts.
const START: Duration = Duration::from_secs(1_800_000_000);

/// A call that has ended.
#[derive(Debug)]
struct Ended {
    /// Its place in the order of arrival.
    number: usize,
    wait: Duration,
    started: Duration,
    at: Duration,
    result: Result<Decision, Rejection>,
}

/// Processes that share a store and a clock, and their calls of one key.
struct Fleet {
    processes: Vec<RateLimiter>,
    clock: VirtualClock,
    calls: Vec<AbortHandle>,
    waiting: JoinSet<Ended>,
    ended: Vec<Ended>,
}

impl Fleet {
    async fn new(processes: Vec<RateLimiter>, clock: VirtualClock) -> Self {
        for process in &processes {
            // Connects.
            process.peek(&tokens(1), "connect", 1).await.expect("a decision");
        }
        Self { processes, clock, calls: Vec::new(), waiting: JoinSet::new(), ended: Vec::new() }
    }

    async fn embedded() -> Self {
        let TestLimiter { limiter, clock } = TestLimiter::embedded();
        clock.set(START);
        Self::new(vec![limiter], clock).await
    }

    async fn redis(server: &Server, processes: usize) -> Self {
        let clock = VirtualClock::at(START);
        Self::new((0..processes).map(|_| server.limiter_on(&clock)).collect(), clock).await
    }

    /// Starts processes whose key has no token left.
    async fn exhausted(server: &Server, processes: usize) -> Self {
        let fleet = Self::redis(server, processes).await;
        fleet.processes[0].check(&tokens(1), "key", 1).await.expect("a new key");
        fleet
    }

    /// Starts a process that decides itself once the server is dead.
    async fn with_fallback(server: &Server) -> Self {
        let clock = VirtualClock::at(START);
        let builder = server.builder().on_error(OnError::Local).deadline(SECOND);
        Self::new(vec![on_clock(builder, &clock)], clock).await
    }

    /// Starts a call in a process, and lets it reserve its moment.
    async fn start(&mut self, process: usize, limit: &Limit, wait: Duration, cost: u64) {
        let check = self.processes[process].check(&limit.wait(wait), "key", cost);
        let (clock, started, number) = (self.clock.clone(), self.clock.now(), self.calls.len());
        let call =
            check.map(move |result| Ended { number, wait, started, at: clock.now(), result });
        self.calls.push(self.waiting.spawn(call));
        self.run_until_idle().await;
    }

    async fn drop_call(&mut self, number: usize) {
        self.calls[number].abort();
        self.run_until_idle().await;
    }

    /// Runs all tasks until they wait for the clock, and records the calls that have ended and were not dropped.
    async fn run_until_idle(&mut self) {
        for process in &self.processes {
            wait_until_idle(process).await;
        }
        let calls = std::iter::from_fn(|| self.waiting.try_join_next());
        let calls = calls.filter(|call| !call.as_ref().is_err_and(JoinError::is_cancelled));
        let mut ended: Vec<_> = calls.map(|call| call.expect("no panic")).collect();
        ended.sort_by_key(|call| (call.at, call.number));
        self.ended.extend(ended);
    }

    async fn advance(&mut self, ticks: u64) {
        for _ in 0..ticks {
            self.clock.advance(TICK);
            self.run_until_idle().await;
        }
    }

    /// Moves the clock until all calls have ended, and sorts them by arrival. Asserts that each has ended within its
    /// wait.
    async fn finish(&mut self) {
        while !self.waiting.is_empty() {
            self.advance(1).await;
        }
        self.ended.sort_by_key(|call| call.number);
        for call in &self.ended {
            let took = call.at - call.started;
            assert!(took <= call.wait, "{call:?}");
            if let Err(Rejection::Limited { decision, .. }) = &call.result {
                assert!(took + decision.retry_after > call.wait, "{call:?}");
            }
        }
    }

    async fn peek(&self, limit: &Limit) -> Decision {
        decision(self.processes[0].peek(limit, "key", 1).await)
    }

    /// Returns the admitted calls, and how many milliseconds after the start of the fleet they were admitted.
    fn admitted(&self) -> Vec<(usize, u128)> {
        let admitted = self.ended.iter().filter(|call| match &call.result {
            Ok(_) => true,
            Err(Rejection::Limited { .. } | Rejection::Blocked { .. }) => false,
            Err(other) => panic!("{other:?}"),
        });
        admitted.map(|call| (call.number, (call.at - START).as_millis())).collect()
    }

    fn order(&self) -> Vec<usize> {
        self.admitted().into_iter().map(|(number, _)| number).collect()
    }
}

#[tokio::test]
async fn calls_of_several_processes_are_admitted_in_the_order_of_arrival() {
    let server = Server::start();
    let mut fleet = Fleet::exhausted(&server, 3).await;
    // Some calls that arrive one after the other belong to the same process.
    for process in [0, 0, 1, 2, 2, 2, 1, 0, 1, 1] {
        fleet.start(process, &tokens(1), MINUTE, 1).await;
    }
    // A call without `wait` does not overtake. Its `retry_after` is the moment after all reservations.
    let unqueued = decision(fleet.processes[1].check(&tokens(1), "key", 1).await);
    assert_eq!((unqueued.allowed, unqueued.retry_after), (false, Duration::from_millis(1_100)));
    fleet.advance(120).await;
    assert!(fleet.admitted().into_iter().eq((0..10).zip((100..).step_by(100))));
}

#[tokio::test]
async fn a_process_reserves_what_refills_in_a_second() {
    let server = Server::start();
    for mut fleet in [Fleet::embedded().await, Fleet::redis(&server, 1).await] {
        for _ in 0..40 {
            fleet.start(0, &tokens(1), MINUTE, 1).await;
        }
        // The first call is admitted at once, and ten calls have moments.
        assert_eq!(fleet.order(), [0]);
        assert_eq!(fleet.peek(&tokens(1)).await.retry_after, Duration::from_millis(1_100));
        for cost in [2, 3] {
            let slow = Limit::token_bucket("slow", 1, SECOND).burst(3);
            fleet.start(0, &slow, MINUTE, cost).await;
        }
        fleet.advance(410).await;
        assert_eq!(fleet.order().len(), 42);
    }
}

#[tokio::test]
async fn calls_behind_a_dropped_call_move_up() {
    let server = Server::start();
    for mut fleet in [Fleet::embedded().await, Fleet::redis(&server, 1).await] {
        assert!(fleet.processes[0].check(&tokens(1), "key", 1).await.is_ok());
        for _ in 0..6 {
            fleet.start(0, &tokens(1), MINUTE, 1).await;
        }
        for number in [1, 4, 0] {
            fleet.drop_call(number).await;
        }
        // Three calls wait, and the next call will be the fourth.
        assert_eq!(fleet.peek(&tokens(1)).await.retry_after, Duration::from_millis(400));
        fleet.start(0, &tokens(1), MINUTE, 1).await;
        fleet.advance(40).await;
        assert_eq!(fleet.admitted(), [(2, 100), (3, 200), (5, 300), (6, 400)]);
    }
}

/// A call of another process already knows its moment. So a cancelled reservation in front of it passes unused:
/// fewer calls are admitted than the rate allows, never more.
#[tokio::test]
async fn a_cancelled_reservation_in_front_of_another_process_passes_unused() {
    let server = Server::start();
    let mut fleet = Fleet::exhausted(&server, 2).await;
    fleet.start(0, &tokens(1), MINUTE, 1).await;
    fleet.start(1, &tokens(1), MINUTE, 1).await;
    fleet.drop_call(0).await;
    fleet.start(0, &tokens(1), MINUTE, 1).await;
    assert_eq!(fleet.peek(&tokens(1)).await.retry_after, Duration::from_millis(400));
    fleet.drop_call(2).await;
    assert_eq!(fleet.peek(&tokens(1)).await.retry_after, Duration::from_millis(300));
    fleet.advance(20).await;
    assert_eq!(fleet.order(), [1]);
}

/// Starts a call that waits ten seconds for its moment, beside calls of another process.
async fn start_far_call(server: &Server) -> (Fleet, Limit) {
    let mut fleet = Fleet::redis(server, 3).await;
    let limit = Limit::token_bucket("far", 100, Duration::from_secs(100)).burst(10);
    fleet.processes[0].check(&limit, "key", 10).await.expect("a new key");
    fleet.start(0, &limit, MINUTE, 10).await;
    assert!(fleet.ended.is_empty());
    (fleet, limit)
}

/// Units that go back let a call start at once that has reserved a far moment: in its own process immediately, in
/// another one within a second.
#[tokio::test]
async fn a_far_moment_moves_forward_after_a_refund() {
    let server = Server::start();
    for (refunds, ticks) in [(0, 0), (1, 101)] {
        let (mut fleet, limit) = start_far_call(&server).await;
        fleet.processes[refunds].credit(&limit, "key", 10).await.expect("a decision");
        fleet.advance(ticks).await;
        fleet.run_until_idle().await;
        assert_eq!(fleet.order(), [0], "{refunds}");
        assert_eq!(fleet.peek(&limit).await.remaining, 0);
        fleet.processes[0].reset(&limit, "key").await.expect("a decision");
    }
}

/// A moment that another process has reserved behind a far one keeps it where it is. That other moment is the last, so
/// it moves forward.
#[tokio::test]
async fn a_far_moment_before_another_stays() {
    let server = Server::start();
    let (mut fleet, limit) = start_far_call(&server).await;
    fleet.start(1, &limit, MINUTE, 1).await;
    fleet.processes[0].credit(&limit, "key", 5).await.expect("a decision");
    fleet.advance(999).await;
    assert_eq!(fleet.order(), [1]);
    fleet.advance(1).await;
    assert_eq!(fleet.order(), [1, 0]);
}

/// Another process blocks the key of calls that have reserved far moments. They learn within a second that the block
/// ends too late for them, and their units are free once the block ends.
#[tokio::test]
async fn a_far_moment_before_another_goes_back_when_another_process_blocks_the_key() {
    let server = Server::start();
    let (mut fleet, limit) = start_far_call(&server).await;
    fleet.advance(10).await;
    fleet.start(1, &limit, MINUTE, 1).await;
    fleet.processes[2].block(&limit, "key", Duration::from_secs(70)).await.expect("a decision");
    for (number, ticks) in [(0, 90), (1, 10)] {
        fleet.advance(ticks).await;
        let is_rejected = |call: &Ended| call.number == number && call.result.is_err();
        assert!(fleet.ended.iter().any(is_rejected), "{number}: {:?}", fleet.ended);
    }
    fleet.advance(1_000).await;
    fleet.processes[2].unblock(&limit, "key").await.expect("a decision");
    assert_eq!(fleet.peek(&limit).await.remaining, 10);
}

/// Eight calls hold moments when another process resets the count, or refunds units of these moments. They start at
/// these moments, which are at most a second ahead.
#[tokio::test]
async fn calls_end_in_time_after_another_process_resets_the_count_or_refunds_units() {
    let server = Server::start();
    for refunded in 0..=8 {
        let (mut fleet, limit) = (Fleet::redis(&server, 2).await, tokens(1));
        let other = fleet.processes[1].clone();
        other.reset(&limit, "key").await.expect("a reply");
        fleet.processes[0].check(&limit, "key", 1).await.expect("a new key");
        for _ in 0..8 {
            fleet.start(0, &limit, 2 * SECOND, 1).await;
        }
        let waits: &[u64] = if refunded == 0 {
            other.reset(&limit, "key").await.expect("a reply");
            &[50, 350, 500, 850]
        } else {
            other.credit(&limit, "key", refunded).await.expect("a reply");
            &[50, 150, 250, 450, 500, 750, 2_000]
        };
        for wait in waits {
            fleet.start(0, &limit, Duration::from_millis(*wait), 1).await;
        }
        fleet.finish().await;
        let moments: Vec<_> = (0..8).zip((100..).step_by(100)).collect();
        assert_eq!(fleet.admitted()[..8], moments, "{refunded}: {:?}", fleet.ended);
        if refunded == 0 {
            // The calls behind them do not end late.
            assert_eq!(fleet.admitted()[8..], [(11, 800)], "{:?}", fleet.ended);
        }
        let left = decision(other.peek(&limit, "key", 1).await);
        assert!(left.reset_after <= SECOND / 10, "{refunded}: {left:?}");
    }
}

/// Redis dies while calls hold moments of Redis. The moments of this process are behind them, so calls with short waits
/// are rejected.
#[tokio::test]
async fn calls_end_in_time_behind_moments_of_a_dead_server() {
    let server = Server::start();
    let mut fleet = Fleet::with_fallback(&server).await;
    fleet.processes[0].check(&tokens(1), "key", 1).await.expect("a new key");
    for _ in 0..8 {
        fleet.start(0, &tokens(1), 20 * SECOND, 1).await;
    }
    drop(server);
    for wait in [50, 500, 5_000, 50, 5_000] {
        fleet.start(0, &tokens(1), Duration::from_millis(wait), 1).await;
    }
    fleet.finish().await;
    assert_eq!(fleet.order(), [0, 1, 2, 3, 4, 5, 6, 7, 10, 12], "{:?}", fleet.ended);
    for call in &fleet.ended[8..] {
        let decided = decision(call.result.clone());
        let is_at_once = call.at == call.started && decided.remaining == 0;
        assert!(is_at_once || decided.source == Source::Fallback && decided.allowed, "{call:?}");
    }
    // Three units were charged for rejected calls, and are given back.
    let left = fleet.peek(&tokens(1)).await;
    assert!(left.reset_after <= SECOND / 10, "{left:?}");
}

/// Redis dies while calls hold moments of Redis. The calls behind them have moments of this process, which stay apart.
#[tokio::test]
async fn moments_of_a_fallback_follow_those_of_redis() {
    let server = Server::start();
    let mut fleet = Fleet::with_fallback(&server).await;
    for _ in 0..30 {
        fleet.start(0, &tokens(1), 20 * SECOND, 1).await;
    }
    drop(server);
    fleet.finish().await;
    assert_eq!(fleet.order().len(), 30, "{:?}", fleet.ended);
    assert!(fleet.ended.iter().all(|call| call.at < START + 10 * SECOND), "{:?}", fleet.ended);
    let is_local = |call: &&Ended| decision(call.result.clone()).source == Source::Fallback;
    let local: Vec<_> = fleet.ended.iter().filter(is_local).map(|call| call.at).collect();
    assert!((10..30).contains(&local.len()), "{:?}", fleet.ended);
    let are_apart = local.windows(2).all(|pair| pair[1] - pair[0] >= 8 * TICK);
    assert!(are_apart, "{:?}", fleet.ended);
}
