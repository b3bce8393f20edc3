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
        cost: u32,
        is_rated: bool,
    },
    /// A call that waits for some time until its units are free.
    WaitingCall {
        cost: u32,
        micros: u64,
    },
    /// The caller of a call that waits drops it.
    DropWaiting(usize),
    /// The end of a call, and the units to which its rate is settled.
    End {
        index: usize,
        used: u32,
    },
    Wait(u64),
    /// A rule: how many may be in flight.
    Rule(u32),
    Close(u64),
    Reset,
}

fn step() -> impl Strategy<Value = Step> {
    let time = prop_oneof![1_u64..300_000, Just(1_000_000)];
    prop_oneof![
        8 => (0_u32..5, any::<bool>()).prop_map(|(cost, is_rated)| Step::Call { cost, is_rated }),
        6 => (any::<usize>(), 0_u32..9).prop_map(|(index, used)| Step::End { index, used }),
        3 => time.clone().prop_map(Step::Wait),
        1 => (1_u32..9).prop_map(Step::Rule),
        1 => time.prop_map(Step::Close),
        1 => Just(Step::Reset),
    ]
}

/// The same steps, and calls that wait. Rules and closings are left out: they do not say how a line follows them.
fn step_beside_lines() -> impl Strategy<Value = Step> {
    let steps = step()
        .prop_filter("no line follows it", |step| !matches!(step, Step::Rule(_) | Step::Close(_)));
    prop_oneof![
        4 => steps,
        1 => (1_u32..5, 1_u64..2_000_000).prop_map(
            |(cost, micros)| Step::WaitingCall { cost, micros }
        ),
        1 => any::<usize>().prop_map(Step::DropWaiting),
    ]
}

/// A call in line: first come, first served.
struct Waiting {
    cost: u32,
    until: u64,
    task: JoinHandle<Result<Permit, Rejection>>,
}

/// A call that runs. `permits` has one of its rate, if it has one, and one of its units in flight.
struct Running {
    cost: u32,
    was_reset: bool,
    window: Option<u64>,
    permits: Vec<Permit>,
}

/// What is true: the calls that run, and one window.
#[derive(Default)]
struct Truth {
    now: u64,
    running: Vec<Running>,
    line: VecDeque<Waiting>,
    window: (u64, u32),
    most: u32,
    opens: u64,
}

impl Truth {
    /// Starts a call that waits.
    fn wait(&mut self, limiter: &RateLimiter, cost: u32, micros: u64) {
        let (limiter, limit) = (limiter.clone(), SLOTS.wait(Duration::from_micros(micros)));
        let call = async move { limiter.acquire(&limit, "key", cost).await };
        let (until, task) = (self.now + micros, tokio::spawn(call));
        self.line.push_back(Waiting { cost, until, task });
    }

    fn held(&self) -> u32 {
        self.running.iter().filter(|call| !call.was_reset).map(|call| call.cost).sum()
    }

    fn counted(&self) -> u32 {
        let (start, count) = self.window;
        if count > 0 && self.now < start + 1_000_000 { count } else { 0 }
    }
}

async fn play(test: &TestLimiter, steps: &[Step]) {
    let limiter = &test.limiter;
    let mut truth = Truth { most: SLOTS.threshold(), ..Truth::default() };
    for step in steps {
        match *step {
            Step::Call { cost, is_rated } => {
                let rate = is_rated.then(|| Part::new(&RATE, &"key", cost));
                let parts: Vec<_> =
                    rate.into_iter().chain([Part::new(&SLOTS, &"key", cost)]).collect();
                let result = limiter.acquire_all(&parts).await;
                let is_open = truth.now >= truth.opens;
                let fits = cost == 0 || truth.held() + cost <= truth.most;
                let in_rate = !is_rated || cost == 0 || truth.counted() + cost <= 7;
                match result {
                    Ok(permits) => {
                        assert!(is_open && fits && in_rate, "{step:?}: admitted too many");
                        let mut window = None;
                        if is_rated && cost > 0 {
                            if truth.counted() == 0 {
                                truth.window = (truth.now, 0);
                            }
                            truth.window.1 += cost;
                            window = Some(truth.window.0);
                        }
                        truth.running.push(Running { cost, was_reset: false, window, permits });
                    }
                    Err(Rejection::Busy { .. }) => assert!(is_open && !fits && in_rate, "{step:?}"),
                    Err(Rejection::Limited { .. }) => assert!(!in_rate, "{step:?}"),
                    Err(Rejection::CostExceedsCapacity { .. }) => assert!(cost > truth.most),
                    Err(Rejection::Closed { .. }) => assert!(!is_open, "{step:?}"),
                    Err(other) => panic!("{other:?}"),
                }
            }
            Step::End { index, used } if !truth.running.is_empty() => {
                let index = index % truth.running.len();
                let Running { cost, window, mut permits, .. } = truth.running.swap_remove(index);
                drop(permits.pop());
                if let Some(permit) = permits.pop() {
                    permit.settle(used);
                    let counts =
                        window.is_some_and(|it| truth.counted() > 0 && it == truth.window.0);
                    if counts {
                        truth.window.1 -= cost.saturating_sub(used);
                    }
                    if used > cost {
                        if truth.counted() == 0 {
                            truth.window = (truth.now, 0);
                        }
                        truth.window.1 += used - cost;
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
            Step::Rule(most) => {
                truth.most = most;
                let mut rules = RuleSet::new();
                rules.set("slots", Rule::new().in_flight(most)).expect("valid");
                limiter.set_rules(rules).expect("valid");
            }
            Step::Close(micros) => {
                truth.opens = truth.opens.max(truth.now + micros);
                let closing = limiter.close(&SLOTS, "key", Duration::from_micros(micros));
                closing.await.expect("closed");
            }
            Step::Reset => {
                truth.opens = truth.now;
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
        if truth.now >= truth.opens {
            let held = truth.held().min(truth.most);
            assert_eq!(test.in_flight(&SLOTS).await, held, "{step:?}");
        }
    }
    for Waiting { task, .. } in truth.line.drain(..) {
        task.abort();
        let _ = task.await;
    }
    truth.running.clear();
    follow_line(test, &mut truth).await;
    test.clock.advance(100 * SECOND);
    assert_eq!(test.in_flight(&SLOTS).await, 0);
}

/// Lets time pass. The end of one wait can admit the next call in line before its own wait ends.
async fn pass(test: &TestLimiter, truth: &mut Truth, micros: u64) {
    let end = truth.now + micros;
    while truth.now < end {
        let next = truth.line.iter().map(|waiting| waiting.until).min();
        let next = next.map_or(end, |next| next.min(end));
        test.clock.advance(Duration::from_micros(next - truth.now));
        truth.now = next;
        follow_line(test, truth).await;
    }
}

/// Lets the calls that wait be decided: the first ones of the line for which there is room, and those whose wait ends.
async fn follow_line(test: &TestLimiter, truth: &mut Truth) {
    // What a call does that was woken can wake others.
    for _ in 0..2 {
        run_tasks().await;
        wait_until_decided(&test.limiter).await;
        test.limiter.flush().await.expect("settled");
    }
    let (mut line, mut is_first) = (std::mem::take(&mut truth.line), true);
    while let Some(Waiting { cost, until, task }) = line.pop_front() {
        if truth.now >= until {
            let result = timeout(5 * SECOND, task).await.expect("its wait has ended");
            let result = result.expect("no panic");
            assert!(matches!(result, Err(Rejection::Busy { .. })), "{result:?}");
        } else if is_first && truth.held() + cost <= truth.most {
            let result = timeout(5 * SECOND, task).await.expect("there is room");
            let permits = vec![result.expect("no panic").expect("there is room")];
            truth.running.push(Running { cost, was_reset: false, window: None, permits });
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
    play_histories(step_beside_lines(), 60);
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
