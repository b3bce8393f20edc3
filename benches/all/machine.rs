//! Describes the machine of the measurements, and the other limiters.

use std::fmt::Write;
use std::process::Command;

use crate::figure;
use crate::table::Block;

/// For each limiter: its name, where its keys are, its algorithm, and what to consider when reading its figures.
const PEERS: [(&str, &str, &str, &str); 5] = [
    (
        "governor",
        "this process",
        "token bucket (GCRA)",
        "exact to the nanosecond; keeps whole keys until the program drops the unused ones",
    ),
    (
        "throttle-kit",
        "this process; Redis, one script per decision",
        "token bucket (GCRA)",
        "in whole milliseconds; on Redis by the client's clock, and admits calls when Redis fails",
    ),
    (
        "trypema",
        "this process; Redis, one script per decision",
        "sliding window in steps of 10 ms",
        "may admit too many under concurrency, as its documentation says; documented for Redis 7.2 and later",
    ),
    (
        "actix-limitation",
        "Redis, a transaction and a connection per decision",
        "fixed window in whole seconds",
        "rejected calls count as well",
    ),
    (
        "leaky-bucket",
        "no keys",
        "token bucket",
        "made for waiting: refills in steps, hands permits out in order",
    ),
];

pub(crate) fn describe() -> Vec<Block> {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.map_or("unknown processor", |line| line.trim_start_matches([' ', '\t', ':']));
    let cores = cores();
    let virtual_one = if cpus.contains(" hypervisor ") { ", virtual" } else { "" };
    let cores = if cores == 1 { "1 core".to_owned() } else { format!("{cores} cores") };
    let redis = said("redis-server", &["--version"]);
    let redis = redis.split_whitespace().find_map(|word| word.strip_prefix("v="));
    let rustc = said("rustc", &["--version"]);
    let rustc = rustc.split(" (").next().unwrap_or_default();
    let machine = format!(
        "{model}{virtual_one}, {cores}, shared by clients and servers; {} {}; {rustc}, Redis {}.",
        std::env::consts::OS,
        std::env::consts::ARCH,
        redis.unwrap_or("unknown")
    );
    let mut peers =
        String::from("| limiter | counts in | decides by | |\n| --- | --- | --- | --- |");
    for (name, place, by, note) in PEERS {
        let version = version(name);
        let link = format!("[`{name}`](https://docs.rs/{name}) {version}");
        write!(peers, "\n| {link} | {place} | {by} | {note} |").expect("text");
    }
    vec![Block::markdown("machine", machine), Block::markdown("peers", peers)]
}

/// Returns whether there is memory for `keys` keys of `bytes` bytes for all limiters together. Prints a message
/// if not.
pub(crate) fn has_room(keys: u32, bytes: u64) -> bool {
    let text = std::fs::read_to_string("/proc/meminfo").expect("Linux");
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).expect("a size");
    let free = line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024;
    let has = free > u64::from(keys) * bytes;
    if !has {
        println!("too little memory for {} keys of each\n", figure::grouped(keys.into()));
    }
    has
}

fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Returns the version of a package in `Cargo.lock`.
fn version(name: &str) -> &'static str {
    let lock = include_str!("../../Cargo.lock");
    let package = format!("name = \"{name}\"\nversion = \"");
    let found = lock.split(&package).nth(1).and_then(|rest| rest.split('"').next());
    found.expect("a locked version")
}

/// Returns the number of cores of this machine.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
