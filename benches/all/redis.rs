//! Decisions on Redis: over numbers of tasks and of keys.

use std::sync::Arc;

use redis::Connection;
use tokio::runtime::Runtime;

use crate::fleet::{self, Contender};
use crate::table::{Axis, Better, Block, Column, Row, Table};
use crate::turns::in_turns;
use crate::{Scale, keys, machine};

/// Keys are picked from a list of this length, again and again.
const PICKED: usize = 1 << 20;

pub(crate) fn measure(scale: &Scale) -> Vec<Block> {
    let runtime = Runtime::new().expect("a runtime");
    let all = fleet::start(&runtime);
    let columns: Vec<Column> = all.iter().map(|contender| contender.column.clone()).collect();
    let run = |tasks, keys: Vec<u32>| {
        let keys: Arc<[u32]> = keys.into();
        in_turns(scale.rounds, &all, |who| who.round(&runtime, tasks, &keys, scale.round))
    };
    fill(&runtime, &all, 10_000);
    let mut blocks = by_tasks(scale, &columns, run);
    blocks.push(by_load(scale, &columns, run));
    blocks.push(by_keys(scale, &columns, &runtime, &all, run));
    blocks
}

type Figures = Vec<[f64; 5]>;

fn by_tasks(
    scale: &Scale,
    columns: &[Column],
    run: impl Fn(usize, Vec<u32>) -> Figures,
) -> Vec<Block> {
    let tasks: &[u32] = if scale.quick { &[1, 1_024] } else { &[1, 4, 16, 64, 256, 1_024] };
    let measured: Vec<(u32, Figures)> = tasks
        .iter()
        .map(|tasks| (*tasks, run(*tasks as usize, keys::uniform(10_000, PICKED))))
        .collect();
    let table = |id, title, unit, better, chart, figure: fn(&[f64; 5]) -> f64| {
        let rows = measured.iter().map(|(tasks, all)| Row::at(*tasks, all.iter().map(figure)));
        let rows = rows.collect();
        let columns = columns.to_vec();
        Block::table(id, Table { title, unit, better, by: "tasks", columns, rows, chart })
    };
    let log = Some(Axis::Log);
    let less = Better::Less;
    vec![
        table(
            "redis-tasks",
            "Decisions on Redis, by the number of tasks",
            "thousand a second, 10,000 keys",
            Better::More,
            log,
            |figures| figures[0] / 1e3,
        ),
        table(
            "redis-p50",
            "Half of all decisions on Redis take at most",
            "microseconds, 10,000 keys",
            less,
            None,
            |figures| figures[1],
        ),
        table(
            "redis-p99",
            "All but one in a hundred decisions on Redis take at most",
            "microseconds, 10,000 keys",
            less,
            log,
            |figures| figures[2],
        ),
        table(
            "redis-client",
            "Processor time of the client for a decision on Redis",
            "microseconds, 10,000 keys",
            less,
            log,
            |figures| figures[3],
        ),
        table(
            "redis-server",
            "Processor time of the server for a decision on Redis",
            "microseconds, 10,000 keys",
            less,
            None,
            |figures| figures[4],
        ),
    ]
}

/// Some keys come more often than others, as they do.
fn by_load(scale: &Scale, columns: &[Column], run: impl Fn(usize, Vec<u32>) -> Figures) -> Block {
    let few: &[usize] = if scale.quick { &[16] } else { &[16, 256] };
    let rows = few.iter().flat_map(|tasks| {
        [("zipf", keys::zipf(10_000, PICKED)), ("one key", vec![0])].map(|(name, keys)| {
            let figures = run(*tasks, keys);
            Row::of(format!("{name}, {tasks} tasks"), figures.iter().map(|all| all[0] / 1e3))
        })
    });
    Block::table(
        "redis-loads",
        Table {
            title: "Decisions on Redis, where some keys come more often",
            unit: "thousand a second, 10,000 keys",
            better: Better::More,
            by: "load",
            columns: columns.to_vec(),
            rows: rows.collect(),
            chart: None,
        },
    )
}

fn by_keys(
    scale: &Scale,
    columns: &[Column],
    runtime: &Runtime,
    all: &[Contender],
    run: impl Fn(usize, Vec<u32>) -> Figures,
) -> Block {
    let rows = keys::powers(scale.most_keys).filter_map(|count| {
        if !fill(runtime, all, count) {
            return None;
        }
        let figures = run(64, keys::uniform(count, PICKED));
        Some(Row::at(count, figures.iter().map(|all| all[0] / 1e3)))
    });
    Block::table(
        "redis-keys",
        Table {
            title: "Decisions on Redis, by the number of keys",
            unit: "thousand a second, 64 tasks",
            better: Better::More,
            by: "keys",
            columns: columns.to_vec(),
            rows: rows.collect(),
            chart: Some(Axis::Log),
        },
    )
}

/// Copies what a decision of one key leaves behind, for so many keys.
const COPY: &str = "\
for index = ARGV[2], ARGV[3] do
  redis.call('COPY', KEYS[1], (string.gsub(KEYS[1], ARGV[1], index .. '', 1)))
end";

/// The key that is copied: not a number that stands elsewhere in a name.
const TEMPLATE: u32 = 987_654_321;

/// Makes so many keys of each, or says that there is no room for them.
fn fill(runtime: &Runtime, all: &[Contender], count: u32) -> bool {
    if !machine::has_room(count, 1_200) {
        return false;
    }
    std::thread::scope(|scope| {
        for who in all {
            let mut connection = who.server.connection();
            redis::cmd("FLUSHALL").exec(&mut connection).expect("FLUSHALL");
            // Known for some time: what it takes for a key to live longer is set rarely by now.
            (0..100).for_each(|_| who.decide(runtime, TEMPLATE));
            scope.spawn(move || copy(&mut connection, count));
        }
    });
    // What is decided now was there before, or the keys are not the right ones.
    for who in all {
        let size =
            || -> u64 { redis::cmd("DBSIZE").query(&mut who.server.connection()).expect("DBSIZE") };
        let before = size();
        who.decide(runtime, count - 1);
        assert_eq!(before, size(), "a new key of {}", who.column.name);
    }
    true
}

fn copy(connection: &mut Connection, count: u32) {
    const STEP: u32 = 10_000;
    let keys: Vec<String> =
        redis::cmd("KEYS").arg(format!("*{TEMPLATE}*")).query(connection).expect("KEYS");
    for key in keys {
        for first in (0..count).step_by(STEP as usize) {
            let last = (first + STEP).min(count) - 1;
            let mut script = redis::cmd("EVAL");
            script.arg(COPY).arg(1).arg(&key).arg(TEMPLATE).arg(first).arg(last);
            script.exec(connection).expect("copies");
        }
    }
}
