//! Random histories, compared with a list of the calls that run.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use ratelimit_runtime::{Limit, Part, Permit, Rejection, Rule, RuleSet};
use support::limits::SECOND;
use support::server::Server;

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
    window: (u64, u32),
    most: u32,
    opens: u64,
}

impl Truth {
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
            Step::Wait(micros) => {
                truth.now += micros;
                test.clock.advance(Duration::from_micros(micros));
            }
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
        for Running { cost, was_reset, permits, .. } in &truth.running {
            let slot = permits.last().expect("one for each part");
            assert_eq!(slot.is_lost(), *was_reset && *cost > 0, "{step:?}");
        }
        if truth.now >= truth.opens {
            let held = truth.held().min(truth.most);
            assert_eq!(test.in_flight(&SLOTS).await, held, "{step:?}");
        }
    }
    truth.running.clear();
    test.clock.advance(100 * SECOND);
    assert_eq!(test.in_flight(&SLOTS).await, 0);
}

#[test]
fn a_history_is_what_its_calls_are() {
    let server = Server::start();
    let mut runner = TestRunner::new(ProptestConfig::with_cases(150));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let histories = prop::collection::vec(step(), 1..60);
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
