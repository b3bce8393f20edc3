//! A fleet whose calls hold slots: four processes with 64 tasks each. One is killed, one is stopped for longer than the
//! hold, and tasks are dropped at any time. Never do more calls run at the same time than the limit says, what the dead
//! held is free after the hold, and nothing is left.
//!
//! Without arguments, this program is the test. With arguments, it is one process of the fleet.

use std::collections::HashMap;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use ratelimit_runtime::{Limit, OnError, Permit, RateLimiter};
use support::history::machine_time;
use support::server::Server;
use tokio::task::JoinSet;
use tokio::time;

const PROCESSES: usize = 4;
const TASKS: u64 = 64;
const MOST: u32 = 3;
const KEYS: u64 = 2;
const HOLD: Duration = Duration::from_secs(1);
const RUN: Duration = Duration::from_secs(8);
const LIMIT: Limit = Limit::in_flight("fleet", MOST).hold(HOLD);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [process, url, number] if process == "process" => {
            member(url, number.parse().expect("a number"));
        }
        // `cargo test -- <filter>` passes a filter for other tests.
        _ => test(),
    }
}

/// A call that runs. It writes its end before its slot is free.
struct Running {
    id: u64,
    permit: Permit,
}

impl Drop for Running {
    fn drop(&mut self) {
        let word = if self.permit.is_lost() { "lost" } else { "end" };
        println!("{word} {} 0 {}", self.id, machine_time());
    }
}

fn member(url: &str, number: u64) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let limiter = RateLimiter::builder()
            .redis(url)
            .on_error(OnError::Deny)
            .deadline(Duration::from_millis(500))
            .build()
            .expect("valid");
        let (started, mut tasks) = (Instant::now(), JoinSet::new());
        for task in 0..TASKS {
            let limiter = limiter.clone();
            tasks.spawn(async move {
                let mut random = number * TASKS + task + 1;
                let mut next = move || {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    random >> 33
                };
                while started.elapsed() < RUN {
                    let (key, waits) = (next() % KEYS, next() % 2 == 0);
                    let limit = if waits { LIMIT.wait(HOLD) } else { LIMIT };
                    let (work, id) = (Duration::from_millis(next() % 60), next() << 16 | number);
                    let call = async {
                        let Ok(permit) = limiter.acquire(&limit, key, 1).await else {
                            return time::sleep(Duration::from_millis(5)).await;
                        };
                        println!("run {id} {key} {}", machine_time());
                        let _running = Running { id, permit };
                        time::sleep(work).await;
                    };
                    // A third of the calls are dropped: in their request, in their line, or while they run.
                    let patience = if next() % 3 == 0 { next() % 40 } else { 60_000 };
                    let _ = time::timeout(Duration::from_millis(patience), call).await;
                }
            });
        }
        tasks.join_all().await;
        limiter.flush().await.expect("a reply");
    });
}

/// A call: its key, and when it has run.
struct Run {
    key: u64,
    from: u64,
    until: u64,
}

fn signal(process: &Child, signal: &str) -> u64 {
    let now = machine_time();
    let status = Command::new("kill").args([signal, &process.id().to_string()]).status();
    assert!(status.expect("kill runs").success());
    now
}

fn test() {
    println!("\nrunning 1 test");
    let server = Server::start();
    let program = std::env::current_exe().expect("this program has a path");
    let processes: Vec<Child> = (0..PROCESSES)
        .map(|number| {
            Command::new(&program)
                .args(["process", &server.url, &number.to_string()])
                .stdout(Stdio::piped())
                .spawn()
                .expect("a process")
        })
        .collect();
    sleep(RUN / 4);
    let killed = signal(&processes[0], "-KILL");
    let stopped = signal(&processes[1], "-STOP");
    sleep(3 * HOLD);
    signal(&processes[1], "-CONT");

    let mut runs = Vec::new();
    let mut lost = 0;
    for (number, process) in processes.into_iter().enumerate() {
        let output = process.wait_with_output().expect("its output");
        assert_eq!(output.status.success(), number != 0, "process {number}");
        let mut open: HashMap<u64, (u64, u64)> = HashMap::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [word, numbers @ ..] = &words[..] else { continue };
            let numbers: Vec<u64> = numbers.iter().filter_map(|it| it.parse().ok()).collect();
            // The last line of a process that was killed can be cut off.
            let [id, key, at] = numbers[..] else { continue };
            if *word == "run" {
                open.insert(id, (key, at));
            } else if let Some((key, from)) = open.remove(&id) {
                // A process that is stopped runs no call.
                let until = if *word == "lost" { stopped.max(from) } else { at };
                lost += u32::from(*word == "lost");
                runs.push(Run { key, from, until });
            }
        }
        assert!(open.is_empty() || number == 0, "process {number}: {open:?}");
        runs.extend(open.into_values().map(|(key, from)| Run { key, from, until: killed }));
    }
    let after = killed + (2 * HOLD).as_micros() as u64;
    for key in 0..KEYS {
        let of_key = || runs.iter().filter(|run| run.key == key);
        let mut events: Vec<(u64, i32)> =
            of_key().flat_map(|run| [(run.from, 1), (run.until, -1)]).collect();
        // An end at the time of a start comes first.
        events.sort_unstable();
        let (mut running, mut most, mut most_after) = (0, 0, 0);
        for (at, change) in events {
            running += change;
            most = most.max(running);
            if at > after {
                most_after = most_after.max(running);
            }
        }
        assert_eq!(most, MOST as i32, "key {key}: as many as the limit says");
        assert_eq!(most_after, MOST as i32, "key {key}: the slots of the dead are free");
    }
    let calls = runs.len();
    assert!(calls > 200, "{calls} calls");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let limiter = RateLimiter::builder().redis(&server.url).build().expect("valid");
        sleep(HOLD);
        for key in 0..KEYS {
            let peeked = limiter.peek(&LIMIT, key, 0).await.expect("admitted");
            assert_eq!(peeked.remaining, MOST, "key {key}: nothing is left");
        }
    });
    server.assert_all_keys_expire();
    println!("test in_flight_fleet ... ok, {calls} calls, {lost} of them lost their slots");
    println!("\ntest result: ok. 1 passed; 0 failed; 0 ignored\n");
}
