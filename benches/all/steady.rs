//! Measures sliding windows in a steady state in this process: each call finds about one unit that has left the window
//! since the last call of its key. A virtual clock keeps the keys as full as a row says, at any speed of the machine.
//!
//! A token bucket does the same work on the same clock, except for the window. None of the other limiters has an exact
//! sliding window in this process: governor and throttle-kit have buckets, and trypema groups calls of 10 milliseconds.
//! So the window is compared with one by hand.

use std::collections::{HashMap, VecDeque};
use std::hint::black_box;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ratelimit_runtime::{Clock, Limit, RateLimiter, VirtualClock};

use crate::peers::{self, Decides};
use crate::table::{Better, Block, Column, Kind, Row, Table};
use crate::turns::in_turns;
use crate::{Scale, figure, keys};

/// The clock moves once for this many decisions, so that its cost does not count.
const STRIDE: u32 = 64;

/// By how much turns are shorter and more than in other benchmarks, so that the figures of a row can be compared.
const SHORTER: usize = 8;

/// A limit, and the number of its keys.
#[derive(Clone, Copy)]
struct Shape {
    pub(crate) keys: u32,
    pub(crate) threshold: u32,
    pub(crate) period: Duration,
    pub(crate) each: &'static str,
}

/// How many of 100 units each key has used.
#[derive(Clone, Copy, PartialEq)]
enum Fill {
    Half,
    Nearly,
    /// All, and the clock stands still.
    Rejected,
}

impl Fill {
    const ALL: [(&'static str, Self); 3] =
        [("half full", Self::Half), ("nearly full", Self::Nearly), ("rejected", Self::Rejected)];

    fn calls(self, threshold: u32) -> u32 {
        match self {
            Self::Half => threshold / 2,
            Self::Nearly => threshold * 9 / 10,
            Self::Rejected => threshold,
        }
    }
}

const MINUTE: Duration = Duration::from_secs(60);

const SHAPES: [Shape; 4] = [
    Shape { keys: 1_000, threshold: 100, period: MINUTE, each: "a minute" },
    Shape { keys: 10_000, threshold: 10, period: Duration::from_secs(1), each: "a second" },
    Shape { keys: 10_000, threshold: 100, period: MINUTE, each: "a minute" },
    Shape { keys: 10_000, threshold: 1_000, period: Duration::from_secs(3_600), each: "an hour" },
];

const COLUMNS: [(&str, Kind); 3] =
    [("ours, token bucket", Kind::Beside), ("ours, sliding", Kind::Ours), ("by hand", Kind::Peer)];

/// A limiter whose keys stay equally full while calls come in turn.
struct Steady {
    who: Box<dyn Decides>,
    clock: VirtualClock,
    /// By how much the clock moves for [`STRIDE`] decisions.
    step: Duration,
}

impl Steady {
    pub(crate) fn new(name: &str, shape: Shape, fill: Fill) -> Self {
        let Shape { keys, threshold, period, .. } = shape;
        let clock = VirtualClock::new();
        let calls = fill.calls(threshold);
        let ours = |limit| {
            let builder = RateLimiter::builder().max_keys(1_000_000);
            let limiter = builder.clock(Clock::Virtual(clock.clone())).build().expect("valid");
            Box::new(peers::Ours::of(limiter, limit))
        };
        let who: Box<dyn Decides> = match name {
            // It refills as fast as calls come. If it were full, the store would remove it.
            "ours, token bucket" => {
                ours(Limit::token_bucket("bench", calls.into(), period).burst(threshold.into()))
            }
            "ours, sliding" => ours(Limit::sliding("bench", threshold.into(), period)),
            "by hand" => Box::new(ByHand {
                logs: Mutex::default(),
                clock: clock.clone(),
                threshold: threshold as usize,
                period,
            }),
            _ => unreachable!("no limiter {name}"),
        };
        let decisions = u64::from(keys) * u64::from(calls);
        let micros = period.as_micros() as u64 * u64::from(STRIDE) / decisions;
        let step = Duration::from_micros(if fill == Fill::Rejected { 0 } else { micros });
        Self { who, clock, step }
    }

    /// Fills `keys` keys to the level at which they stay during the measurement.
    pub(crate) fn fill(&self, picked: &[u32], fill: Fill, shape: Shape) {
        for pass in 0..fill.calls(shape.threshold) {
            for (call, index) in (0..).zip(&picked[..shape.keys as usize]) {
                // The clock stands still at first, so that no bucket is full when the next call comes.
                self.admits(if pass < 2 { 1 } else { call }, &keys::text(*index));
            }
        }
    }

    /// Decides a call. `call` is its number.
    pub(crate) fn admits(&self, call: u32, key: &String) -> bool {
        if call.is_multiple_of(STRIDE) && !self.step.is_zero() {
            self.clock.advance(self.step);
        }
        self.who.admits(key)
    }

    /// Decides calls of the picked keys. Returns the nanoseconds of a decision.
    fn decide(&self, picked: &[u32]) -> f64 {
        let mut key = String::new();
        let start = Instant::now();
        for (call, index) in (0..).zip(picked) {
            keys::write(&mut key, *index);
            black_box(self.admits(call, &key));
        }
        start.elapsed().as_nanos() as f64 / picked.len() as f64
    }
}

/// An exact sliding window as a program writes it by hand.
struct ByHand {
    logs: Mutex<HashMap<String, VecDeque<Duration>>>,
    clock: VirtualClock,
    threshold: usize,
    period: Duration,
}

impl Decides for ByHand {
    fn admits(&self, key: &String) -> bool {
        let now = self.clock.now();
        let mut logs = self.logs.lock().expect("no panic");
        if !logs.contains_key(key) {
            logs.insert(key.clone(), VecDeque::new());
        }
        let Some(log) = logs.get_mut(key) else { return false };
        while log.front().is_some_and(|at| *at + self.period <= now) {
            log.pop_front();
        }
        let is_admitted = log.len() < self.threshold;
        if is_admitted {
            log.push_back(now);
        }
        is_admitted
    }
}

pub(crate) fn measure(scale: &Scale) -> Vec<Block> {
    let shapes = SHAPES.iter().filter(|shape| !scale.quick || shape.threshold <= 100);
    let rows = shapes.flat_map(|shape| {
        let picked = keys::in_passes(shape.keys, scale.decisions / SHORTER);
        Fill::ALL.map(|(load, fill)| {
            let all = COLUMNS.map(|(name, _)| {
                let steady = Steady::new(name, *shape, fill);
                steady.fill(&picked, fill, *shape);
                steady
            });
            let took = in_turns(scale.rounds * SHORTER, &all, |steady| [steady.decide(&picked)]);
            let Shape { keys, threshold, each, .. } = *shape;
            let [keys, threshold] = [keys, threshold].map(|count| figure::grouped(count.into()));
            let name = format!("{keys} keys, {threshold} {each}, {load}");
            Row::of(name, took.iter().map(|[nanos]| *nanos))
        })
    });
    vec![Block::table(
        "embedded-steady",
        Table {
            title: "A sliding window in a steady state in one process",
            unit: "nanoseconds of a decision",
            better: Better::Less,
            by: "load",
            rows: rows.collect(),
            columns: COLUMNS.map(|(name, kind)| Column::new(name, kind)).into(),
        },
    )]
}
