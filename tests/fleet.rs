//! A fleet of two releases: for each algorithm, four processes with up to 64 tasks each call one key on one Redis. Two
//! processes are of the last release, a tag `v*`; until there is one, all are of this commit. Together they admit
//! exactly the threshold. With leases, also automatic ones, the admitted and the returned units add up to it. With
//! permits, exactly what the calls have used is charged, or up to the estimates of processes that are killed. Calls in
//! flight hold at most their slots. Each process writes its admitted calls, and the judge decides about those of all.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use ratelimit_runtime::{Algorithm, Limit};
use support::ALGORITHMS;
use support::fleet::{ESTIMATE, LEASE, SLOTS, THRESHOLD, limit};
use support::history::AdmittedCall;
use support::judge::{HolderJudge, Judge};
use support::limits::is_bucket;
use support::server::Server;
use tokio::runtime::Runtime;

const PROCESSES: usize = 4;

struct Fleet {
    server: Server,
    /// The program of a process: of the last release, and of this commit.
    programs: [PathBuf; 2],
}

fn main() {
    let programs = [last_release(), env!("CARGO_BIN_EXE_fleet_member").into()];
    let (fleet, count) = (Fleet { server: Server::start(), programs }, 4 * ALGORITHMS.len() + 1);
    println!("\nrunning {count} tests");
    for algorithm in ALGORITHMS {
        for leases in ["unleased", "leased", "auto"] {
            fleet.count(algorithm, leases);
            println!("test fleet::{algorithm}_{leases} ... ok");
        }
        fleet.settle(algorithm, ["settled"; PROCESSES]);
        fleet.settle(algorithm, ["settled", "killed", "settled", "killed"]);
        println!("test fleet::{algorithm}_settled ... ok");
    }
    fleet.hold();
    println!("test fleet::in_flight ... ok");
    println!("\ntest result: ok. {count} passed; 0 failed; 0 ignored\n");
}

/// Returns the program of the last release. Builds it from the sources of the tag, once.
fn last_release() -> PathBuf {
    let own = PathBuf::from(env!("CARGO_BIN_EXE_fleet_member"));
    let run = |script: &str, words: &[&str]| {
        let mut shell = Command::new("sh");
        shell.args(["-euc", script, env!("CARGO")]).args(words);
        shell.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).output().expect("sh runs")
    };
    let tag = run("git describe --tags --abbrev=0 --match 'v*'", &[]);
    if !tag.status.success() {
        println!("there is no release yet: all processes are of this commit");
        return own;
    }
    let tag = String::from_utf8(tag.stdout).expect("UTF-8").trim().to_owned();
    let folder =
        own.ancestors().nth(2).expect("the folder of the builds").join(format!("of-{tag}"));
    let program = folder.join("target/run-tests/fleet_member");
    if !program.exists() {
        println!("building a process of {tag}");
        let build = "mkdir -p \"$1\"; git archive \"$2\" | tar -x -C \"$1\"; cd \"$1\"
            \"$0\" build --quiet --locked --profile run-tests -p tests --bin fleet_member --target-dir target";
        let output = run(build, &[folder.to_str().expect("UTF-8"), &tag]);
        assert!(output.status.success(), "{tag}: {}", String::from_utf8_lossy(&output.stderr));
    }
    program
}

/// Asserts that the judge does not object to the calls of all processes, and that it would object to a unit more.
fn judge(limit: &Limit, calls: &[AdmittedCall]) {
    let mut judge = Judge::new(limit, None);
    judge.admitted_all(calls);
    let breaches = judge.breaches();
    assert!(breaches.is_empty(), "{limit:?}: {:?}", breaches[0]);
    let left = THRESHOLD - calls.iter().map(|call| call.used).sum::<u64>();
    assert!(judge.objects_to_more(limit, left + 1), "{limit:?}: the judge does not see all calls");
}

impl Fleet {
    /// Runs processes of these modes at the same time, the first half of them of the last release. Returns what each
    /// has written.
    fn run(&self, limit: &str, modes: &[&str]) -> Vec<String> {
        let start = |(number, mode): (usize, &&str)| {
            let mut process = Command::new(&self.programs[2 * number / PROCESSES]);
            process.args([&self.server.url, limit, mode]).stdout(Stdio::piped());
            process.spawn().expect("a process")
        };
        let processes: Vec<_> = modes.iter().enumerate().map(start).collect();
        let outputs = processes.into_iter().zip(modes).map(|(process, mode)| {
            let output = process.wait_with_output().expect("its output");
            assert_eq!(output.status.success(), *mode != "killed", "{limit}: a {mode} process");
            String::from_utf8(output.stdout).expect("UTF-8")
        });
        outputs.collect()
    }

    /// Asserts that each key expires, and deletes all.
    fn end(&self) {
        self.server.assert_all_keys_expire();
        self.server.command::<()>("FLUSHALL");
    }

    /// Four processes count their calls, with or without leases.
    fn count(&self, algorithm: Algorithm, leases: &str) {
        let outputs = self.run(algorithm.as_str(), &[leases; PROCESSES]);
        let spent = outputs.iter().map(|text| text.lines().next().expect("the leased units"));
        let spent: Vec<u64> = spent.map(|units| units.parse().expect("a count")).collect();
        let mut calls: Vec<_> =
            outputs.iter().flat_map(|text| AdmittedCall::parse_all(text)).collect();
        let what = format!("{algorithm}, {leases}: {} calls, leased {spent:?}", calls.len());
        assert_eq!(spent.iter().any(|units| *units > 0), leases != "unleased", "{what}");
        let units = match leases {
            "leased" => LEASE,
            "auto" => THRESHOLD / 100,
            _ => 0,
        };
        // While a bucket is leased, it keeps the units that refill in a second, rounded up.
        let least = THRESHOLD - u64::from(is_bucket(algorithm) && units > 0);
        let most = if leases == "leased" { least } else { THRESHOLD };
        if units > 0 {
            let held = PROCESSES as u64 * units;
            assert!((least - held..=most).contains(&(calls.len() as u64)), "{what}");
            // The processes have returned their unspent units.
            calls.extend(AdmittedCall::parse_all(&self.run(algorithm.as_str(), &[leases])[0]));
        }
        judge(&limit(algorithm, leases), &calls);
        assert!((least..=most).contains(&(calls.len() as u64)), "{what}");
        self.end();
    }

    /// Four processes settle their calls at the same time. A process of the mode `killed` dies before it has settled
    /// all.
    fn settle(&self, algorithm: Algorithm, modes: [&str; PROCESSES]) {
        let ([mut settled, mut killed], mut all) = ([0, 0], Vec::new());
        for (text, mode) in self.run(algorithm.as_str(), &modes).iter().zip(modes) {
            let calls = AdmittedCall::parse_all(text);
            *(if mode == "settled" { &mut settled } else { &mut killed }) += calls.len() as u64;
            all.extend(calls);
        }
        let limit = limit(algorithm, "settled");
        judge(&limit, &all);
        let limiter = self.server.builder().build().expect("valid");
        let peek = Runtime::new().expect("a runtime").block_on(limiter.peek(&limit, "one key", 1));
        let charged = THRESHOLD - peek.expect("a reply").remaining;
        // A call has used one unit. A call that was not settled is charged its estimate. A bucket gets back a little
        // less of calls that overlap.
        let kept = if is_bucket(algorithm) { (ESTIMATE - 1) * settled / 5 } else { 0 };
        let range = settled + killed..=settled + ESTIMATE * killed + kept;
        assert!(range.contains(&charged), "{algorithm}: {charged} of {range:?}");
        let calls = settled + killed;
        assert!(calls > THRESHOLD / ESTIMATE, "{algorithm}: {settled} and {killed} calls");
        self.end();
    }

    /// The calls of four processes wait for slots.
    fn hold(&self) {
        let mut steps = Vec::new();
        for (process, text) in self.run("in_flight", &["held"; PROCESSES]).iter().enumerate() {
            for (call, line) in text.lines().enumerate() {
                let times = line.strip_prefix("held ").expect("a call").split(' ');
                let times: Vec<u64> = times.map(|time| time.parse().expect("a time")).collect();
                let [asked, from, until] = times[..] else { panic!("{line}") };
                // An end comes before a start of the same time.
                steps.extend([(until, 0, process, call, from), (from, 1, process, call, asked)]);
            }
        }
        steps.sort_unstable();
        let (mut judge, mut held) = (HolderJudge::default(), HashMap::new());
        for (at, begins, process, call, since) in steps {
            if begins == 1 {
                held.insert((process, call), judge.admitted(process, (since, at), 1, SLOTS));
            } else {
                judge.ended([held[&(process, call)]], at);
            }
        }
        let breaches = judge.breaches();
        assert!(breaches.is_empty(), "{breaches:?}");
        assert!(judge.objects_to_one_unit_less(), "the slots are never all in use");
        self.end();
    }
}
