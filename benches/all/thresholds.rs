//! Measures sliding windows in Redis over thresholds: the memory of a full key, and the cost of a rejection by
//! it.

use ratelimit_runtime::Algorithm;

use crate::scripts::{Bench, LASTING, Measured};
use crate::table::{Better, Block, Column, Kind, Row, Table};
use crate::turns::in_turns;
use crate::{Scale, keys};

/// The entries of a sorted set take 100 bytes each.
const MOST: u32 = 1_000_000;

const SORTED_SET: Measured = Measured::Textbook(include_str!("../textbook/sliding.lua"));

pub(crate) fn measure(scale: &Scale) -> Vec<Block> {
    let (all, benches): (Vec<_>, Vec<_>) =
        [Measured::Ours(Algorithm::Sliding), Measured::Ours(Algorithm::TokenBucket), SORTED_SET]
            .map(|what| (what, Bench::new()))
            .into_iter()
            .unzip();
    let each: Vec<(&Measured, &Bench)> = all.iter().zip(&benches).collect();
    let calls = if scale.quick { 500 } else { 5_000 };
    let (mut bytes, mut times) = (Vec::new(), Vec::new());
    for threshold in keys::powers(scale.most_threshold.min(MOST)).skip(1) {
        let limit = (threshold, LASTING);
        let full = each.iter().map(|(what, bench)| {
            bench.forget();
            bench.run(**what, limit, threshold);
            bench.memory()
        });
        bytes.push(Row::at(threshold, full));
        let took =
            in_turns(
                scale.rounds,
                &each,
                |(what, bench)| [bench.server_time(**what, limit, calls)],
            );
        times.push(Row::at(threshold, took.iter().map(|[micros]| *micros)));
    }
    let columns = vec![
        Column::new("ours, sliding", Kind::Ours),
        Column::new("ours, token bucket", Kind::Beside),
        Column::new("sorted set", Kind::Peer),
    ];
    let table = |title, unit, rows| Table {
        title,
        unit,
        better: Better::Less,
        by: "threshold",
        columns: columns.clone(),
        rows,
        chart: None,
    };
    let (bytes, times) = (
        table("Memory of a full key in Redis", "bytes, name included", bytes),
        table(
            "A rejection by a full key in Redis",
            "microseconds of the server in the script",
            times,
        ),
    );
    vec![Block::table("thresholds-memory", bytes), Block::table("thresholds-time", times)]
}
