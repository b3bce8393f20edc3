//! Measures single decisions in this process, each by itself.
//!
//! The benchmark uses the clock of the standard library. On Linux, the processor completes all earlier
//! instructions before it reads this clock.
//! The counter of the processor costs less, but can be read while loads from memory are still pending. A
//! separate column contains the time of two reads with nothing between them; it is not subtracted.

use std::hint::black_box;
use std::time::Instant;

use crate::peers::{self, KEYED};
use crate::table::{Better, Block, Column, Kind, Row, Table};
use crate::turns::in_turns;
use crate::{FLOWING, Scale, keys};

const KEYS: u32 = 1_000_000;

pub(crate) fn measure(scale: &Scale) -> Block {
    let picked = keys::uniform(KEYS.min(scale.most_keys), scale.decisions);
    let mut all: Vec<_> = KEYED.iter().map(|name| Some(peers::keyed(name, FLOWING))).collect();
    all.push(None);
    let took = in_turns(scale.rounds, &all, |who| {
        let mut key = String::new();
        let mut waits: Vec<u64> = picked
            .iter()
            .map(|index| {
                keys::write(&mut key, *index);
                let start = Instant::now();
                if let Some(who) = who {
                    black_box(who.admits(&key));
                }
                start.elapsed().as_nanos() as u64
            })
            .collect();
        waits.sort_unstable();
        [500, 990, 999].map(|part| waits[waits.len() * part / 1000] as f64)
    });
    let rows = ["p50", "p99", "p99.9"].into_iter().enumerate();
    let rows = rows.map(|(index, name)| Row::of(name, took.iter().map(|figures| figures[index])));
    let mut columns: Vec<Column> = KEYED.map(peers::column).into();
    columns.push(Column::new("the clock alone", Kind::Beside));
    Block::table(
        "embedded-single",
        Table {
            title: "Single decisions on a million keys in one process",
            unit: "nanoseconds, reading the clock included",
            better: Better::Less,
            by: "percentile",
            rows: rows.collect(),
            columns,
            chart: None,
        },
    )
}
