//! Measures decisions on a cluster of three nodes, for this library and for one script a decision through the cluster
//! client of redis-rs. Both decide on the same cluster, in turns.

use std::sync::Arc;

use support::cluster::Cluster;
use tokio::runtime::Runtime;

use crate::contender::Who;
use crate::table::{Better, Block, Column, Kind, Row, Table};
use crate::turns::in_turns;
use crate::{Scale, keys};

const KEYS: u32 = 10_000;

pub(crate) fn measure(scale: &Scale) -> Vec<Block> {
    let (runtime, cluster) = (Runtime::new().expect("a runtime"), Cluster::start(0));
    let names = [("ours", Kind::Ours), ("`EVALSHA`", Kind::Peer)];
    let all = names.map(|(name, kind)| {
        let who = runtime.block_on(Who::connect_to_cluster(name, &cluster.url()));
        (Column::new(name, kind), who)
    });
    let tasks: &[usize] = if scale.quick { &[16] } else { &[1, 4, 16, 64, 256] };
    let uniform: Arc<[u32]> = keys::uniform(KEYS, 1 << 20).into();
    let loads = tasks.iter().map(|tasks| (format!("uniform, {tasks} tasks"), *tasks, &uniform));
    let one: Arc<[u32]> = [0].into();
    let zipf: Arc<[u32]> = keys::zipf(KEYS, 1 << 20).into();
    let others = [("zipf", 256, &zipf), ("one key", 256, &one)];
    let others = others.map(|(name, tasks, keys)| (format!("{name}, {tasks} tasks"), tasks, keys));
    let measured = loads.chain(others).map(|(name, tasks, keys)| {
        let figures = in_turns(scale.rounds, &all, |(column, who)| {
            match who.run(&runtime, &column.name, tasks, keys, scale.round) {
                None => [f64::NAN; 2],
                Some((waits, took)) => {
                    let late = f64::from(waits[waits.len() * 99 / 100]) / 1e3;
                    [waits.len() as f64 / took.as_secs_f64() / 1e3, late]
                }
            }
        });
        (name, figures)
    });
    let measured: Vec<(String, Vec<[f64; 2]>)> = measured.collect();
    let columns = || all.iter().map(|(column, _)| column.clone()).collect();
    let rows = |figure: usize| {
        let row = |(name, all): &(String, Vec<[f64; 2]>)| {
            Row::of(name.clone(), all.iter().map(|figures| figures[figure]))
        };
        measured.iter().map(row).collect()
    };
    let table = |id, title, unit, better, figure| {
        let (columns, rows) = (columns(), rows(figure));
        Block::table(id, Table { title, unit, better, by: "load", columns, rows })
    };
    vec![
        table(
            "cluster",
            "Decisions on a cluster of three nodes",
            "thousand a second, 10,000 keys",
            Better::More,
            0,
        ),
        table(
            "cluster-p99",
            "99th percentile of a decision on a cluster of three nodes",
            "microseconds, 10,000 keys",
            Better::Less,
            1,
        ),
    ]
}
