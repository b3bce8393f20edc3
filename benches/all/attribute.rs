//! Measures a call through the attribute.

use std::hint::black_box;
use std::time::Instant;

use ratelimit_runtime::{Rule, RuleSet, rate_limit};

use crate::peers::{self, ready};
use crate::table::{Better, Block, Column, Kind, Row, Table};
use crate::turns::in_turns;
use crate::{FLOWING, Scale, UNITS, keys};

pub(crate) fn measure(scale: &Scale) -> Vec<Block> {
    vec![calls(scale)]
}

#[rate_limit(period = "7300d", threshold = UNITS, algo = "token_bucket", key = "{user}:{id}", on_limited = |_| false)]
async fn formatted(user: &str, id: u32) -> bool {
    black_box((user, id));
    true
}

#[rate_limit(period = "7300d", threshold = UNITS, algo = "token_bucket", key = user, on_limited = |_| false)]
async fn text(user: &str) -> bool {
    black_box(user);
    true
}

#[rate_limit(period = "7300d", threshold = UNITS, algo = "token_bucket", key = (user, id), on_limited = |_| false)]
async fn tuple(user: &str, id: u32) -> bool {
    black_box((user, id));
    true
}

#[rate_limit(period = "7300d", threshold = UNITS, algo = "token_bucket", on_limited = |_| false)]
async fn keyless() -> bool {
    true
}

/// The bursts of 16 plans. The rate is the same, because a decision takes longer at some rates.
#[rate_limit(
    period = "7300d",
    threshold = UNITS,
    burst = UNITS - u64::from(plan),
    algo = "token_bucket",
    key = user,
    on_limited = |_| false
)]
async fn planned(user: &str, plan: u32) -> bool {
    black_box(user);
    true
}

/// Under a rule of its name, with the same threshold.
#[rate_limit(
    name = "ruled",
    period = "7300d",
    threshold = UNITS,
    algo = "token_bucket",
    key = user,
    on_limited = |_| false
)]
async fn ruled(user: &str) -> bool {
    black_box(user);
    true
}

/// Sets a rule for all calls of [`ruled`].
fn set_rule() {
    let mut rules = RuleSet::new();
    rules.set("ruled", Rule::new().threshold(UNITS)).expect("valid");
    ratelimit_runtime::current().expect("valid settings").set_rules(rules).expect("set");
}

type Call = Box<dyn Fn(u32) -> bool>;

/// The kinds of keys and amounts.
const KEYS: [&str; 6] = [
    "`key = \"{user}:{id}\"`",
    "`key = user`",
    "`key = (user, id)`",
    "no key",
    "`key = user, burst = ..` of 16 plans",
    "`key = user`, under a rule",
];

/// Returns a function that makes a call with a key of this kind; ids are below `keys`.
fn call(key: &str, keys: u32) -> Call {
    let names: Vec<String> = (0..keys).map(|index| format!("user:{index}")).collect();
    match KEYS.iter().position(|name| *name == key) {
        Some(0) => Box::new(|id| ready(formatted("user", id))),
        Some(1) => Box::new(move |id| ready(text(&names[id as usize]))),
        Some(2) => Box::new(|id| ready(tuple("user", id))),
        Some(4) => Box::new(move |id| ready(planned(&names[id as usize], id % 16))),
        Some(5) => {
            set_rule();
            Box::new(move |id| ready(ruled(&names[id as usize])))
        }
        _ => Box::new(|_| ready(keyless())),
    }
}

/// Returns a function that calls `governor` with a key that is built for the call.
fn by_hand() -> Call {
    let governor = peers::keyed("governor", FLOWING);
    Box::new(move |id| governor.admits(&format!("{}:{id}", black_box("user"))))
}

fn calls(scale: &Scale) -> Block {
    let ids = keys::uniform(10_000, scale.decisions);
    let rows = KEYS.map(|key| {
        let took = in_turns(scale.rounds, &[call(key, 10_000), by_hand()], |call| {
            let start = Instant::now();
            for id in &ids {
                black_box(call(*id));
            }
            [start.elapsed().as_nanos() as f64 / ids.len() as f64]
        });
        Row::of(key, took.iter().map(|[nanos]| *nanos))
    });
    Block::table(
        "attribute-calls",
        Table {
            title: "A call through the attribute",
            unit: "nanoseconds, on 10,000 keys",
            better: Better::Less,
            by: "attribute",
            rows: rows.into(),
            columns: vec![
                Column::new("ours", Kind::Ours),
                Column::new("governor by hand with `format!`", Kind::Peer),
            ],
        },
    )
}
