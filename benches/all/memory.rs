//! Measures the memory of a key in this process: the growth of resident memory, in a separate process for each
//! limiter.

use crate::figure::grouped;
use crate::peers::{self, KEYED};
use crate::table::{Better, Block, Row, Table};
use crate::{FLOWING, Scale, child, keys};

/// Returns the numbers of keys. Tables double, so they are fuller or emptier between powers of ten.
fn steps(most: u32) -> impl Iterator<Item = u32> {
    let most = most.max(100_000);
    let all = keys::powers(most).flat_map(|power| [power, power * 2, power * 5]);
    all.filter(move |keys| (100_000..=most).contains(keys))
}

pub(crate) fn measure(scale: &Scale) -> Vec<Block> {
    let most = scale.most_keys.to_string();
    let all: Vec<Vec<f64>> = KEYED
        .iter()
        .map(|name| {
            let child = child::program().args(["memory-of", name, &most]).output();
            let output = child.expect("a process").stdout;
            let text = String::from_utf8_lossy(&output);
            text.lines().map(|line| line.parse().expect("a number")).collect()
        })
        .collect();
    let rows = steps(scale.most_keys).enumerate();
    let rows = rows
        .map(|(index, keys)| Row::of(grouped(keys.into()), all.iter().map(|bytes| bytes[index])));
    let table = Table {
        title: "Memory of a key in one process, by the number of keys",
        unit: "bytes of resident memory",
        better: Better::Less,
        by: "keys",
        rows: rows.collect(),
        columns: KEYED.map(peers::column).into(),
    };
    vec![Block::table("embedded-memory", table)]
}

/// Prints the bytes of a key at each step.
pub(crate) fn child(name: &str, most: u32) {
    let who = peers::keyed(name, FLOWING);
    let before = resident();
    let mut key = String::new();
    let mut made = 0;
    for step in steps(most) {
        for index in made..step {
            keys::write(&mut key, index);
            who.admits(&key);
        }
        made = step;
        println!("{}", (resident() - before) / f64::from(step));
    }
}

fn resident() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = statm.split(' ').nth(1).expect("resident pages");
    pages.parse::<f64>().expect("a number") * 4096.0
}
