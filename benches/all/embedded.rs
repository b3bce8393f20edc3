//! Measures decisions in this process: over numbers of keys, and under other loads.

use std::hint::black_box;
use std::time::Instant;

use crate::peers::{self, Decides, KEYED};
use crate::table::{Better, Block, Row, Table};
use crate::turns::in_turns;
use crate::{FLOWING, Scale, figure, keys, machine};

pub(crate) fn measure(scale: &Scale) -> Vec<Block> {
    vec![by_keys(scale), by_load(scale)]
}

fn by_keys(scale: &Scale) -> Block {
    let rows = keys::powers(scale.most_keys).filter_map(|count| {
        if !machine::has_room(count, 600) {
            return None;
        }
        let all = KEYED.map(|name| {
            let peer = peers::keyed(name, FLOWING);
            // All keys exist before the first measured decision.
            decide(1, &(0..count).collect::<Vec<_>>(), &*peer);
            peer
        });
        let picked = keys::uniform(count, scale.decisions);
        let took = in_turns(scale.rounds, &all, |peer| [decide(1, &picked, &**peer)]);
        Some(Row::of(figure::grouped(count.into()), took.iter().map(|[nanos]| 1e3 / nanos)))
    });
    Block::table(
        "embedded-keys",
        Table {
            title: "Decisions in one process, by the number of keys",
            unit: "million a second of one thread",
            better: Better::More,
            by: "keys",
            rows: rows.collect(),
            columns: KEYED.map(peers::column).into(),
        },
    )
}

/// Measures decisions under other loads than keys of equal probability.
fn by_load(scale: &Scale) -> Block {
    let many = scale.most_keys.min(1_000_000);
    let few = many.min(10_000);
    let counted = |keys: u32| figure::grouped(keys.into());
    let threads = [2, 4, 8, 16].into_iter().filter(|threads| *threads <= machine::cores().max(2));
    let scaling = threads.map(|threads| {
        let name = format!("{} keys, {threads} threads", counted(few));
        (name, FLOWING, threads, keys::uniform(few, scale.decisions))
    });
    let loads = [
        (
            format!("{} keys, 2 threads", counted(many)),
            FLOWING,
            2,
            keys::uniform(many, scale.decisions),
        ),
        (format!("{} keys, zipf", counted(many)), FLOWING, 1, keys::zipf(many, scale.decisions)),
        (
            format!("{} keys, zipf, 2 threads", counted(many)),
            FLOWING,
            2,
            keys::zipf(many, scale.decisions),
        ),
        ("1 key, 2 threads".to_owned(), FLOWING, 2, vec![0; scale.decisions]),
        (format!("{} keys, rejected", counted(few)), 1, 1, keys::uniform(few, scale.decisions)),
        (format!("{} keys, rejected", counted(many)), 1, 1, keys::uniform(many, scale.decisions)),
    ];
    let rows = scaling.chain(loads).map(|(name, threshold, threads, picked)| {
        let all = KEYED.map(|name| peers::keyed(name, threshold));
        Row::of(name, compare(scale, threads, &picked, &all))
    });
    Block::table(
        "embedded-loads",
        Table {
            title: "A decision in one process, under other loads",
            unit: "nanoseconds of one, all threads together",
            better: Better::Less,
            by: "load",
            rows: rows.collect(),
            columns: KEYED.map(peers::column).into(),
        },
    )
}

/// Returns the nanoseconds of a decision, for each limiter.
fn compare(scale: &Scale, threads: usize, picked: &[u32], all: &[Box<dyn Decides>]) -> Vec<f64> {
    let took = in_turns(scale.rounds, all, |peer| [decide(threads, picked, &**peer)]);
    took.into_iter().map(|[nanos]| nanos).collect()
}

/// Returns the nanoseconds of a decision. Each key is first written into a buffer, as a handler would do.
fn decide(threads: usize, picked: &[u32], who: &dyn Decides) -> f64 {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let mut key = String::new();
                for index in picked.iter().skip(thread).step_by(threads) {
                    keys::write(&mut key, *index);
                    black_box(who.admits(&key));
                }
            });
        }
    });
    start.elapsed().as_nanos() as f64 / picked.len() as f64
}
