//! The multiples of other limiters that this library aims at, and what a run has reached.

use std::fmt::Write;

use crate::figure::figure;
use crate::table::{Block, Body, Table};

/// A multiple to reach in a row of a table.
struct Goal {
    /// The place of the table.
    id: &'static str,
    row: &'static str,
    ours: &'static str,
    peer: &'static str,
    multiple: f64,
}

const fn goal(id: &'static str, row: &'static str, peer: &'static str, multiple: f64) -> Goal {
    Goal { id, row, ours: "ours", peer, multiple }
}

/// The most time of a decision of a sliding window, relative to one of a token bucket.
const fn steady(row: &'static str, times: f64) -> Goal {
    let goal = goal("embedded-steady", row, "ours, token bucket", 1.0 / times);
    Goal { ours: "ours, sliding", ..goal }
}

const EVALSHA: &str = "`EVALSHA`";
const BY_HAND: &str = "governor by hand with `format!`";

const GOALS: [Goal; 43] = [
    goal("cluster", "uniform, 16 tasks", EVALSHA, 1.2),
    goal("cluster", "uniform, 256 tasks", EVALSHA, 2.0),
    goal("redis-tasks", "1", EVALSHA, 1.05),
    goal("redis-tasks", "4", EVALSHA, 1.2),
    goal("redis-tasks", "16", EVALSHA, 1.7),
    goal("redis-tasks", "256", EVALSHA, 2.8),
    goal("redis-tasks", "256", "`INCR`", 0.8),
    goal("redis-p99", "1", EVALSHA, 1.0),
    goal("redis-p99", "4", EVALSHA, 1.0),
    goal("redis-p99", "16", EVALSHA, 1.0),
    goal("redis-p99", "1", "throttle-kit", 1.0),
    goal("redis-p99", "4", "throttle-kit", 1.0),
    goal("redis-p99", "16", "throttle-kit", 1.0),
    goal("redis-loads", "zipf, 256 tasks", EVALSHA, 4.0),
    goal("redis-loads", "one key, 256 tasks", EVALSHA, 8.0),
    Goal {
        ours: "ours, `lease = \"auto\"`",
        ..goal("redis-loads", "one key, 256 tasks", EVALSHA, 20.0)
    },
    goal("realistic", "100 a minute", EVALSHA, 2.5),
    goal("realistic", "10 a second", EVALSHA, 2.5),
    goal("realistic", "100 a minute", "throttle-kit", 2.5),
    goal("realistic", "10 a second", "throttle-kit", 2.5),
    goal("embedded-keys", "10", "governor", 1.2),
    goal("embedded-keys", "100", "governor", 1.2),
    goal("embedded-keys", "1,000", "governor", 1.2),
    goal("embedded-keys", "10,000", "governor", 1.3),
    goal("embedded-keys", "1,000,000", "governor", 2.1),
    goal("embedded-loads", "1,000,000 keys, zipf", "governor", 1.35),
    goal("embedded-loads", "10,000 keys, rejected", "governor", 1.25),
    goal("embedded-loads", "1,000,000 keys, rejected", "governor", 1.5),
    goal("embedded-loads", "1 key, 2 threads", "governor", 1.7),
    goal("embedded-keyless", "admitted", "governor", 0.65),
    Goal { ours: "ours, sliding", ..goal("embedded-thresholds", "100", "governor", 0.8) },
    steady("1,000 keys, 100 a minute, nearly full", 1.45),
    steady("10,000 keys, 10 a second, nearly full", 1.6),
    steady("10,000 keys, 100 a minute, nearly full", 1.85),
    steady("10,000 keys, 1,000 an hour, nearly full", 2.1),
    steady("10,000 keys, 100 a minute, rejected", 1.1),
    goal("attribute-calls", "`key = user`", BY_HAND, 1.6),
    goal("attribute-calls", "`key = \"{user}:{id}\"`", BY_HAND, 1.4),
    goal("attribute-calls", "`key = (user, id)`", BY_HAND, 1.6),
    goal("together", "2", "governor, one after the other", 1.0),
    goal("together", "4", "governor, one after the other", 1.0),
    goal("together", "8", "governor, one after the other", 1.0),
    Goal { ours: "annotated", ..goal("attribute-compile", "`cargo check`", "bare", 1.0 / 1.7) },
];

/// Returns each goal and what was reached, as Markdown. A small run does not measure all rows.
pub(crate) fn reached(blocks: &[Block], quick: bool) -> String {
    let mut out = String::from("| what | against | goal | reached |\n| --- | --- | ---: | ---: |");
    for goal in GOALS {
        let Some((title, multiple)) = multiple(blocks, &goal) else {
            assert!(quick, "no figures for the goal of {}, {}", goal.id, goal.row);
            continue;
        };
        let bold = if multiple < goal.multiple * 0.995 { "**" } else { "" };
        let (row, peer, times) = (goal.row, goal.peer, figure(multiple));
        let who = goal.ours.strip_prefix("ours").unwrap_or_default();
        let wanted = figure(goal.multiple);
        write!(out, "\n| {title}: {row}{who} | {peer} | {wanted} | {bold}{times}{bold} |")
            .expect("text");
    }
    out
}

/// Returns the title of the table of a goal, and how many times better than the other this library is in it.
fn multiple(blocks: &[Block], goal: &Goal) -> Option<(&'static str, f64)> {
    let block = blocks.iter().find(|block| block.id == goal.id)?;
    let Body::Table(table) = &block.body else { return None };
    let row = table.rows.iter().find(|row| row.label == goal.row)?;
    let cell = |table: &Table, name: &str| {
        let column = table.columns.iter().position(|column| column.name == name);
        row.cells[column.unwrap_or_else(|| panic!("{}: no column {name}", goal.id))]
    };
    let (ours, theirs) = (cell(table, goal.ours)?, cell(table, goal.peer)?);
    Some((table.title, table.better.gain(ours, theirs)))
}
