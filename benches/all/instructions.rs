//! Measures the instructions of a decision by callgrind. The count is almost the same in each run, whatever other
//! programs do. Only the secrets of hash tables differ.
//!
//! Each count is the difference between two runs with different numbers of decisions, divided by the difference
//! of these numbers. Only the instructions in [`counted_by_callgrind`] count.

use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use support::ALGORITHMS;

use crate::attribute;
use crate::peers::{self, Decides, KEYED, Ours};
use crate::steady::{Fill, MINUTE, Shape, Steady};
use crate::table::{Better, Block, Column, Kind, Row, Table};
use crate::{FLOWING, Scale, child, keys};

/// The number of keys that are decided in turn. All of them exist before the count starts.
const KEYS: u32 = 1_000;

/// Limits whose keys are nearly full, and their names in the table.
const STEADY: [(&str, &str); 2] =
    [("ours, token bucket", "token_bucket, steady"), ("ours, sliding", "sliding, steady")];

/// The time in which another thread has calibrated the counter of the processor, also under callgrind.
const CALIBRATED: Duration = Duration::from_secs(2);

pub(crate) fn measure(scale: &Scale) -> Vec<Block> {
    let there = Command::new("valgrind")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success());
    if !there {
        println!("no valgrind here: instructions are not counted\n");
        return Vec::new();
    }
    let few = if scale.quick { 1_000 } else { 10_000 };
    let count = |case: &str| {
        let [one, other] = [few, 3 * few].map(|calls| callgrind(case, calls));
        (other - one) as f64 / (2 * few) as f64
    };
    let decided = |name: &str| {
        Row::of(name, ["admitted", "refused"].map(|outcome| count(&format!("{name}/{outcome}"))))
    };
    let ours = ALGORITHMS.map(|algorithm| decided(algorithm.as_str()));
    let others = KEYED[1..].iter().map(|name| decided(name));
    let steady = STEADY.map(|(case, name)| {
        Row::of(name, ["admitted", "refused"].map(|outcome| count(&format!("{case}/{outcome}"))))
    });
    let called = attribute::KEYS.map(|key| Row::of(key, [count(key)]));
    let by_hand = Row::of("governor by hand with `format!`", [count("by hand")]);
    let table = |title, by, rows, columns: &[&str]| Table {
        title,
        unit: "instructions",
        better: Better::Less,
        by,
        columns: columns.iter().map(|name| Column::new(name, Kind::Beside)).collect(),
        rows,
        chart: None,
    };
    let decisions = table(
        "A decision in one process",
        "algorithm or limiter",
        ours.into_iter().chain(others).chain(steady).collect(),
        &["admitted", "rejected"],
    );
    let calls = table(
        "A call through the attribute",
        "attribute",
        called.into_iter().chain([by_hand]).collect(),
        &["admitted"],
    );
    vec![Block::table("instructions", decisions), Block::table("instructions-attribute", calls)]
}

/// Returns the instructions of `calls` calls.
fn callgrind(case: &str, calls: u64) -> u64 {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("callgrind.out");
    let this = child::program();
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--collect-atstart=no"]);
    valgrind.arg("--toggle-collect=*counted_by_callgrind*");
    valgrind.arg(format!("--callgrind-out-file={}", out.display()));
    valgrind.arg(this.get_program()).args(["instructions-of", case, &calls.to_string()]);
    let ran = valgrind.output().expect("valgrind starts");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let text = std::fs::read_to_string(out).expect("what callgrind wrote");
    let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
    let total = total.and_then(|total| total.trim().parse().ok());
    total.filter(|total| *total > 0).expect("callgrind counted something")
}

/// Runs a case in the process under callgrind.
pub(crate) fn child(case: &str, calls: u64) {
    if let Some((name, outcome)) = case.split_once('/')
        && STEADY.iter().any(|(case, _)| *case == name)
    {
        let fill = if outcome == "admitted" { Fill::Nearly } else { Fill::Rejected };
        let shape = Shape { keys: KEYS, threshold: 100, period: MINUTE, each: "a minute" };
        let steady = Steady::new(name, shape, fill);
        let keys: Vec<String> = (0..KEYS).map(keys::text).collect();
        steady.fill(&(0..KEYS).collect::<Vec<_>>(), fill, shape);
        counted_by_callgrind(calls, &|id| steady.admits(id, &keys[id as usize]));
        assert_eq!(steady.admits(1, &keys[0]), outcome == "admitted", "{case}");
    } else if let Some((name, outcome)) = case.split_once('/') {
        let threshold = if outcome == "admitted" { FLOWING } else { 1 };
        let algorithm = ALGORITHMS.into_iter().find(|algorithm| algorithm.as_str() == name);
        let who: Box<dyn Decides> = match algorithm {
            Some(algorithm) => Box::new(Ours::new(algorithm, threshold)),
            None => peers::keyed(name, threshold),
        };
        let keys: Vec<String> = (0..KEYS).map(keys::text).collect();
        for key in &keys {
            who.admits(key);
        }
        sleep(CALIBRATED);
        counted_by_callgrind(calls, &|id| who.admits(&keys[id as usize]));
        assert_eq!(who.admits(&keys[0]), outcome == "admitted", "{case}");
    } else {
        let call =
            if case == "by hand" { attribute::by_hand() } else { attribute::call(case, KEYS) };
        (0..KEYS).for_each(|id| assert!(call(id)));
        sleep(CALIBRATED);
        counted_by_callgrind(calls, &call);
    }
}

/// Callgrind finds this function by its name.
#[inline(never)]
fn counted_by_callgrind(calls: u64, call: &dyn Fn(u32) -> bool) {
    for index in 0..calls {
        black_box(call((index % u64::from(KEYS)) as u32));
    }
}
