//! Measures decisions in this process: over numbers of keys, threads and thresholds, and by algorithm.

use std::hint::black_box;
use std::time::Instant;

use support::ALGORITHMS;

use crate::peers::{self, Decides, KEYED, KEYLESS, Ours};
use crate::table::{Axis, Better, Block, Column, Kind, Row, Table};
use crate::turns::in_turns;
use crate::{FLOWING, Scale, figure, keys, machine, single};

pub(crate) fn measure(scale: &Scale) -> Vec<Block> {
    vec![
        by_keys(scale),
        by_load(scale),
        without_keys(scale),
        by_threshold(scale),
        by_algorithm(scale),
        single::measure(scale),
    ]
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
        Some(Row::at(count, took.iter().map(|[nanos]| 1e3 / nanos)))
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
            chart: Some(Axis::Linear),
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
            chart: None,
        },
    )
}

fn without_keys(scale: &Scale) -> Block {
    let loads = [("admitted", FLOWING, 1), ("admitted, 2 threads", FLOWING, 2), ("rejected", 1, 1)];
    let rows = loads.map(|(name, threshold, threads)| {
        let all = KEYLESS.map(|name| peers::keyless(name, threshold));
        Row::of(name, compare(scale, threads, &vec![0; scale.decisions], &all))
    });
    Block::table(
        "embedded-keyless",
        Table {
            title: "A decision without a key",
            unit: "nanoseconds of one, all threads together",
            better: Better::Less,
            by: "load",
            rows: rows.into(),
            columns: KEYLESS.map(peers::column).into(),
            chart: None,
        },
    )
}

/// Fills keys up to their thresholds. The number of decisions is the same for each threshold: a higher threshold
/// has fewer keys.
fn by_threshold(scale: &Scale) -> Block {
    let names = ["ours", "ours, sliding", "governor", "throttle-kit", "trypema"];
    let rows = keys::powers(scale.most_threshold).skip(1).map(|threshold| {
        let keys = (scale.decisions as u32 / threshold).max(1);
        let picked: Vec<u32> = (0..keys * threshold).map(|call| call % keys).collect();
        let took = in_turns(scale.rounds, &names, |name| {
            [decide(1, &picked, &*peers::keyed(name, threshold))]
        });
        Row::at(threshold, took.iter().map(|[nanos]| 1e3 / nanos))
    });
    Block::table(
        "embedded-thresholds",
        Table {
            title: "Keys filled to their threshold in one process",
            unit: "million decisions a second of one thread, new keys included",
            better: Better::More,
            by: "threshold",
            rows: rows.collect(),
            columns: names.map(peers::column).into(),
            chart: None,
        },
    )
}

fn by_algorithm(scale: &Scale) -> Block {
    let picked = keys::uniform(10_000.min(scale.most_keys), scale.decisions);
    let mut took: Vec<_> = [FLOWING, 1]
        .map(|threshold| {
            let all = ALGORITHMS.map(|algorithm| Ours::new(algorithm, threshold));
            in_turns(scale.rounds, &all, |ours| [decide(1, &picked, ours)])
        })
        .into();
    // Each call has a key that no call had before. A full store evicts a key for it.
    let (fresh, many): (Vec<u32>, _) = ((0..scale.decisions as u32).collect(), 20_000_000);
    took.extend([many, 10_000].map(|max_keys| {
        in_turns(scale.rounds, &ALGORITHMS, |algorithm| {
            [decide(1, &fresh, &Ours::bounded(*algorithm, FLOWING, max_keys))]
        })
    }));
    let rows = ALGORITHMS.iter().enumerate().map(|(index, algorithm)| {
        Row::of(algorithm.as_str(), took.iter().map(|took| took[index][0]))
    });
    Block::table(
        "embedded-algorithms",
        Table {
            title: "Our algorithms in one process",
            unit: "nanoseconds of a decision on 10,000 keys",
            better: Better::Less,
            by: "algorithm",
            rows: rows.collect(),
            columns: ["admitted", "rejected", "new keys", "new keys, full store"]
                .map(|name| Column::new(name, Kind::Beside))
                .into(),
            chart: None,
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
