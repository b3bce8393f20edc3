//! Measures decisions on Redis: over numbers of tasks, and where some keys come more often.

use crate::contender::Figures;
use crate::figure::grouped;
use crate::fleet::Fleet;
use crate::table::{Better, Block, Row, Table};
use crate::{Scale, keys};

/// The length of the list from which tasks take their keys, again and again.
const PICKED: usize = 1 << 20;

pub(crate) fn measure(scale: &Scale) -> Vec<Block> {
    let fleet = Fleet::start();
    let there = fleet.fill(10_000);
    let mut blocks = by_tasks(scale, &fleet, &there);
    drop(fleet);
    blocks.push(by_load(scale));
    blocks
}

fn by_tasks(scale: &Scale, fleet: &Fleet, there: &[bool]) -> Vec<Block> {
    let tasks: &[u32] = if scale.quick { &[1, 1_024] } else { &[1, 4, 16, 64, 256, 1_024] };
    let run = |tasks: &u32| {
        let picked = keys::uniform(10_000, PICKED);
        (*tasks, fleet.round(scale, *tasks as usize, picked, there))
    };
    let measured: Vec<(u32, Vec<Figures>)> = tasks.iter().map(run).collect();
    let table = |id, title, unit, better, figure: fn(&Figures) -> f64| {
        let rows = measured
            .iter()
            .map(|(tasks, all)| Row::of(grouped((*tasks).into()), all.iter().map(figure)));
        let rows = rows.collect();
        let columns = fleet.columns();
        Block::table(id, Table { title, unit, better, by: "tasks", columns, rows })
    };
    let less = Better::Less;
    vec![
        table(
            "redis-tasks",
            "Decisions on Redis, by the number of tasks",
            "thousand a second, 10,000 keys",
            Better::More,
            |figures| figures[0] / 1e3,
        ),
        table(
            "redis-p50",
            "Median of a decision on Redis",
            "microseconds, 10,000 keys",
            less,
            |figures| figures[1],
        ),
        table(
            "redis-p99",
            "99th percentile of a decision on Redis",
            "microseconds, 10,000 keys",
            less,
            |figures| figures[2],
        ),
        table(
            "redis-client",
            "Processor time of the client for a decision on Redis",
            "microseconds, 10,000 keys",
            less,
            |figures| figures[3],
        ),
        table(
            "redis-server",
            "Processor time of the server for a decision on Redis",
            "microseconds, 10,000 keys",
            less,
            |figures| figures[4],
        ),
    ]
}

/// Some keys are more frequent than others, as in production.
fn by_load(scale: &Scale) -> Block {
    let fleet = Fleet::with_leases();
    let there = fleet.fill(10_000);
    let few: &[usize] = if scale.quick { &[16] } else { &[16, 256] };
    let rows = few.iter().flat_map(|tasks| {
        [("zipf", keys::zipf(10_000, PICKED)), ("one key", vec![0])].map(|(name, keys)| {
            let figures = fleet.round(scale, *tasks, keys, &there);
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
            columns: fleet.columns(),
            rows: rows.collect(),
        },
    )
}
