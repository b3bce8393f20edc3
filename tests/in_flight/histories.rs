//! Random histories of calls in flight, rates beside them, waits and settlements, compared with lists of the calls that
//! run and of those that wait.

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use ratelimit_runtime::{Limit, Part, Permit, RateLimiter, Rejection, Rule, RuleSet};
use support::limits::SECOND;
use support::lines::{run_tasks, wait_until_decided};
use support::server::Server;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::{HOLD, TestLimiter};

const SLOTS: Limit = Limit::in_flight("slots", 5).hold(HOLD);
const RATE: Limit = Limit::fixed("rate", 7, SECOND);

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A call of `cost` units, and whether a rate limits it as well.
    Call {
        cost: u64,
        is_rated: bool,
    },
    /// A call that waits for some time until its units are free.
    WaitingCall {
        cost: u64,
        micros: u64,
    },
    /// The caller of a call that waits drops it.
    DropWaiting(usize),
    /// The end of a call, and the units to which its rate is settled.
    End {
        index: usize,
        used: u64,
    },
    Wait(u64),
    Rule(Ruled),
    Block(u64),
    Unblock,
    Reset,
}

/// What a rule says about the calls in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ruled {
    Most(u64),
    Exempt,
    Shadow,
    Blocked,
}

fn step() -> impl Strategy<Value = Step> {
    let time = prop_oneof![1_u64..300_000, Just(1_000_000)];
    prop_oneof![
        8 => (0_u64..5, any::<bool>()).prop_map(|(cost, is_rated)| Step::Call { cost, is_rated }),
        6 => (any::<usize>(), 0_u64..9).prop_map(|(index, used)| Step::End { index, used }),
        3 => time.clone().prop_map(Step::Wait),
        1 => ruled().prop_map(Step::Rule),
        1 => time.prop_map(Step::Block),
        1 => Just(Step::Unblock),
        1 => Just(Step::Reset),
    ]
}

fn ruled() -> impl Strategy<Value = Ruled> {
    prop_oneof![
        5 => (1_u64..9).prop_map(Ruled::Most),
        1 => Just(Ruled::Exempt),
        1 => Just(Ruled::Shadow),
        1 => Just(Ruled::Blocked),
    ]
}

/// The same steps, and calls that wait.
fn step_beside_lines() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => step(),
        1 => (1_u64..5, 1_u64..2_000_000).prop_map(
            |(cost, micros)| Step::WaitingCall { cost, micros }
        ),
        1 => any::<usize>().prop_map(Step::DropWaiting),
    ]
}

/// A call in line: first come, first served.
struct Waiting {
    cost: u64,
    until: u64,
    task: JoinHandle<Result<Permit, Rejection>>,
}

/// A call that runs. `permits` has one of its rate, if it has one, and one of its units in flight.
struct Running {
    /// The units in flight; 0 if rules have admitted the call without them.
    cost: u64,
    /// The units of the rate.
    charged: u64,
    was_reset: bool,
    window: Option<u64>,
    permits: Vec<Permit>,
}

/// What is true: the calls that run, and one window.
struct Truth {
    now: u64,
    running: Vec<Running>,
    line: VecDeque<Waiting>,
    window: (u64, u64),
    rule: Ruled,
    blocked_until: u64,
}

impl Truth {
    fn new() -> Self {
        let (running, line, rule) = (Vec::new(), VecDeque::new(), Ruled::Most(SLOTS.threshold()));
        Self { now: 0, running, line, window: (0, 0), rule, blocked_until: 0 }
    }

    fn most(&self) -> u64 {
        if let Ruled::Most(most) = self.rule { most } else { SLOTS.threshold() }
    }

    fn is_open(&self) -> bool {
        self.now >= self.blocked_until
    }

    /// Returns whether the store admits a call of `cost` units.
    fn fits(&self, cost: u64) -> bool {
        self.is_open() && self.held() + cost <= self.most()
    }

    /// Returns what a call of `cost` units holds if rules admit it at once; `None` if they do not.
    fn held_at_once(&self, cost: u64) -> Option<u64> {
        match self.rule {
            Ruled::Exempt => Some(0),
            Ruled::Shadow => Some(if self.fits(cost) { cost } else { 0 }),
            Ruled::Most(_) | Ruled::Blocked => None,
        }
    }

    /// Starts a call that waits.
    fn wait(&mut self, limiter: &RateLimiter, cost: u64, micros: u64) {
        let (limiter, limit) = (limiter.clone(), SLOTS.wait(Duration::from_micros(micros)));
        let call = async move { limiter.acquire(&limit, "key", cost).await };
        let (until, task) = (self.now + micros, tokio::spawn(call));
        self.line.push_back(Waiting { cost, until, task });
    }

    fn set_rule(&mut self, limiter: &RateLimiter, ruled: Ruled) {
        self.rule = ruled;
        let rule = match ruled {
            Ruled::Most(most) => Rule::new().in_flight(most),
            Ruled::Exempt => Rule::new().exempt(true),
            Ruled::Shadow => Rule::new().shadow(true),
            Ruled::Blocked => Rule::new().blocked(true),
        };
        let mut set = RuleSet::new();
        set.set("slots", rule).expect("valid");
        limiter.set_rules(set).expect("valid");
    }

    /// Adds a call that runs.
    fn run(&mut self, cost: u64, charged: u64, window: Option<u64>, permits: Vec<Permit>) {
        self.running.push(Running { cost, charged, was_reset: false, window, permits });
    }

    fn held(&self) -> u64 {
        self.running.iter().filter(|call| !call.was_reset).map(|call| call.cost).sum()
    }

    fn counted(&self) -> u64 {
        let (start, count) = self.window;
        if count > 0 && self.now < start + 1_000_000 { count } else { 0 }
    }
}

#[allow(clippy::too_many_lines, reason = "each step is a few lines")]
async fn play(test: &TestLimiter, steps: &[Step]) {
    let limiter = &test.limiter;
    let mut truth = Truth::new();
    for step in steps {
        match *step {
            Step::Call { cost, is_rated } => {
                let rate = is_rated.then(|| Part::new(&RATE, &"key", cost));
                let parts: Vec<_> =
                    rate.into_iter().chain([Part::new(&SLOTS, &"key", cost)]).collect();
                let result = limiter.acquire_all(&parts).await;
                let at_once = truth.held_at_once(cost);
                let fits = truth.held() + cost <= truth.most();
                let in_rate = !is_rated || truth.counted() + cost <= 7;
                match result {
                    Ok(permits) => {
                        let is_admitted = truth.rule != Ruled::Blocked && truth.fits(cost);
                        assert!(
                            (is_admitted || at_once.is_some()) && in_rate,
                            "{step:?}: admitted too many"
                        );
                        let mut window = None;
                        if is_rated && cost > 0 {
                            if truth.counted() == 0 {
                                truth.window = (truth.now, 0);
                            }
                            truth.window.1 += cost;
                            window = Some(truth.window.0);
                        }
                        let held = at_once.unwrap_or(cost);
                        truth.run(held, if is_rated { cost } else { 0 }, window, permits);
                    }
                    Err(Rejection::Limited { .. }) => assert!(!in_rate, "{step:?}"),
                    Err(error) if at_once.is_some() => panic!("{step:?}: {error:?}"),
                    Err(Rejection::Busy { .. }) => {
                        assert!(truth.is_open() && !fits && in_rate, "{step:?}");
                    }
                    Err(Rejection::CostExceedsCapacity { .. }) => assert!(cost > truth.most()),
                    Err(Rejection::Blocked { .. }) => {
                        let is_blocked = truth.rule == Ruled::Blocked || !truth.is_open();
                        assert!(is_blocked, "{step:?}");
                    }
                    Err(other) => panic!("{other:?}"),
                }
            }
            Step::End { index, used } if !truth.running.is_empty() => {
                let index = index % truth.running.len();
                let Running { charged, window, mut permits, .. } = truth.running.swap_remove(index);
                drop(permits.pop());
                if let Some(permit) = permits.pop() {
                    permit.settle(used);
                    let counts =
                        window.is_some_and(|it| truth.counted() > 0 && it == truth.window.0);
                    if counts {
                        truth.window.1 -= charged.saturating_sub(used);
                    }
                    if used > charged {
                        if truth.counted() == 0 {
                            truth.window = (truth.now, 0);
                        }
                        truth.window.1 += used - charged;
                    }
                }
            }
            Step::End { .. } => {}
            Step::WaitingCall { cost, micros } => truth.wait(limiter, cost, micros),
            Step::DropWaiting(index) => {
                let index = index % truth.line.len().max(1);
                if let Some(Waiting { task, .. }) = truth.line.remove(index) {
                    task.abort();
                    assert!(task.await.is_err_and(|error| error.is_cancelled()));
                }
            }
            Step::Wait(micros) => pass(test, &mut truth, micros).await,
            Step::Rule(ruled) => truth.set_rule(limiter, ruled),
            Step::Block(micros) => {
                truth.blocked_until = truth.blocked_until.max(truth.now + micros);
                let block = limiter.block(&SLOTS, "key", Duration::from_micros(micros));
                block.await.expect("blocked");
            }
            Step::Unblock => {
                truth.blocked_until = truth.now;
                limiter.unblock(&SLOTS, "key").await.expect("unblocked");
            }
            Step::Reset => {
                truth.blocked_until = truth.now;
                limiter.reset(&SLOTS, "key").await.expect("reset");
                truth.running.iter_mut().for_each(|call| call.was_reset = true);
            }
        }
        limiter.flush().await.expect("settled");
        follow_line(test, &mut truth).await;
        for Running { cost, was_reset, permits, .. } in &truth.running {
            let slot = permits.last().expect("one for each part");
            assert_eq!(slot.is_lost(), *was_reset && *cost > 0, "{step:?}");
        }
        if truth.is_open() && matches!(truth.rule, Ruled::Most(_)) {
            let held = truth.held().min(truth.most());
            assert_eq!(test.in_flight(&SLOTS).await, held, "{step:?}");
        }
    }
    for Waiting { task, .. } in truth.line.drain(..) {
        task.abort();
        let _ = task.await;
    }
    truth.running.clear();
    limiter.set_rules(RuleSet::new()).expect("valid");
    follow_line(test, &mut truth).await;
    test.clock.advance(100 * SECOND);
    assert_eq!(test.in_flight(&SLOTS).await, 0);
}

/// Lets time pass. The end of one wait can admit the next call in line before its own wait ends, and so can the end of
/// a block of the key.
async fn pass(test: &TestLimiter, truth: &mut Truth, micros: u64) {
    let end = truth.now + micros;
    while truth.now < end {
        let block = Some(truth.blocked_until).filter(|until| *until > truth.now);
        let ends = truth.line.iter().map(|waiting| waiting.until);
        let next = ends.chain(block).fold(end, u64::min);
        test.clock.advance(Duration::from_micros(next - truth.now));
        truth.now = next;
        follow_line(test, truth).await;
    }
}

/// Follows the calls that wait. Rules decide some of them. The line admits its first calls while there is room, and
/// rejects calls that cannot be admitted in time.
async fn follow_line(test: &TestLimiter, truth: &mut Truth) {
    // What a call does that was woken can wake others.
    for _ in 0..2 {
        run_tasks().await;
        wait_until_decided(&test.limiter).await;
        test.limiter.flush().await.expect("settled");
    }
    let (mut line, mut is_first) = (std::mem::take(&mut truth.line), true);
    while let Some(Waiting { cost, until, task }) = line.pop_front() {
        let is_over = truth.now >= until;
        let is_blocked = truth.rule == Ruled::Blocked || truth.blocked_until > until.max(truth.now);
        let held = if is_over { None } else { truth.held_at_once(cost) };
        let is_admitted = is_first && truth.fits(cost) && truth.rule != Ruled::Blocked;
        if held.is_some() || !is_over && is_admitted {
            let result = timeout(5 * SECOND, task).await.expect("there is room");
            let permits = vec![result.expect("no panic").expect("there is room")];
            truth.run(held.unwrap_or(cost), 0, None, permits);
        } else if is_over || is_blocked || cost > truth.most() {
            let result = timeout(5 * SECOND, task).await.expect("its wait has ended");
            let rejection = result.expect("no panic").expect_err("no room");
            let is_right = match &rejection {
                Rejection::Busy { .. } => is_over,
                Rejection::Blocked { .. } => is_blocked || is_over && truth.blocked_until >= until,
                Rejection::CostExceedsCapacity { .. } => cost > truth.most(),
                _ => false,
            };
            assert!(is_right, "{rejection:?}");
        } else {
            is_first = false;
            assert!(!task.is_finished(), "overtakes, or has no room: {cost}");
            truth.line.push_back(Waiting { cost, until, task });
        }
    }
}

#[test]
fn a_history_is_what_its_calls_are() {
    play_histories(step(), 150);
}

#[test]
fn a_history_with_waits_is_what_its_calls_are() {
    play_histories(step_beside_lines(), 100);
}

fn play_histories(steps: impl Strategy<Value = Step>, cases: u32) {
    let server = Server::start();
    let mut runner = TestRunner::new(ProptestConfig {
        max_shrink_iters: 40,
        ..ProptestConfig::with_cases(cases)
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let histories = prop::collection::vec(steps, 1..60);
    let result = runner.run(&histories, |steps| {
        runtime.block_on(async {
            for test in TestLimiter::each(&server) {
                play(&test, &steps).await;
            }
        });
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}
