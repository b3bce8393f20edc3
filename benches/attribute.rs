//! What the attribute costs the crate that uses it.
//!
//! `cargo bench --bench attribute` builds 200 functions, annotated and bare in turn, several rounds
//! each after their dependencies, and prints the medians; then the size of a future with and without
//! the attribute.

use std::fmt::Write;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ratelimit_runtime::{Rejection, rate_limit};

const FUNCTIONS: usize = 200;
const ROUNDS: usize = 7;

fn main() {
    let [annotated, bare] = [true, false].map(Crate::new);
    for build in ["check", "build"] {
        let mut rounds = [const { Vec::new() }; 2];
        for _ in 0..ROUNDS {
            for (made, rounds) in [&annotated, &bare].into_iter().zip(&mut rounds) {
                rounds.push(made.time(build));
            }
        }
        let [annotated, bare] = rounds.map(median);
        println!(
            "cargo {build}, {FUNCTIONS} functions: {:.2} s annotated, {:.2} s bare, ratio {:.2}",
            annotated.as_secs_f64(),
            bare.as_secs_f64(),
            annotated.as_secs_f64() / bare.as_secs_f64(),
        );
    }
    println!("\nsize of a future in bytes, annotated and bare:");
    let name = "name";
    println!("  no key       {:4} {:4}", size(&no_key()), size(&no_key_bare()));
    println!("  key, cost    {:4} {:4}", size(&key(name, 7)), size(&key_bare(name, 7)));
    println!("  two limits   {:4} {:4}", size(&two(name, 7)), size(&key_bare(name, 7)));
}

#[rate_limit(period = 1, threshold = 10)]
async fn no_key() -> Result<(), Rejection> {
    Ok(())
}

#[allow(clippy::unused_async, reason = "the same function without the attribute")]
async fn no_key_bare() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 10, key = "{name}:{id}", cost = id as u32)]
async fn key(name: &str, id: u64) -> Result<(), Rejection> {
    tokio::task::yield_now().await;
    black_box((name, id));
    Ok(())
}

async fn key_bare(name: &str, id: u64) -> Result<(), Rejection> {
    tokio::task::yield_now().await;
    black_box((name, id));
    Ok(())
}

#[rate_limit(limit(period = 1, threshold = 10), limit(period = 60, threshold = 100), key = (name, id))]
async fn two(name: &str, id: u64) -> Result<(), Rejection> {
    tokio::task::yield_now().await;
    black_box((name, id));
    Ok(())
}

fn size<T>(future: &T) -> usize {
    size_of_val(future)
}

/// A crate of its own, with its dependencies built.
struct Crate {
    folder: PathBuf,
}

impl Crate {
    fn new(annotated: bool) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let name = if annotated { "annotated" } else { "bare" };
        let folder = root.join("target/compile-time").join(name);
        std::fs::create_dir_all(folder.join("src")).expect("a folder");
        let manifest = format!(
            "[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n\
             [dependencies]\nratelimit-runtime = {{ path = '{}' }}\n",
            root.join("ratelimit-runtime").display()
        );
        std::fs::write(folder.join("Cargo.toml"), manifest).expect("written");
        let mut source = String::from("use ratelimit_runtime::*;\n");
        for number in 0..FUNCTIONS {
            if annotated {
                let key = "key = \"{tenant}:{user}\", cost = rows";
                writeln!(source, "#[rate_limit(period = 1, threshold = 10, {key})]").expect("text");
            }
            writeln!(
                source,
                "pub async fn f{number}(tenant: &str, user: u64, rows: u32) -> Result<String, Rejection> {{\n\
                 Ok(format!(\"{{tenant}} {{user}} {{rows}}\"))\n}}"
            )
            .expect("text");
        }
        // Something must ask for the futures, or no code is made for them.
        writeln!(source, "pub fn all() {{").expect("text");
        for number in 0..FUNCTIONS {
            writeln!(
                source,
                "drop(Box::new(f{number}(\"\", 1, 1)) as Box<dyn Future<Output = _>>);"
            )
            .expect("text");
        }
        writeln!(source, "}}").expect("text");
        std::fs::write(folder.join("src/lib.rs"), source).expect("written");
        let made = Self { folder };
        for build in ["check", "build"] {
            made.time(build);
        }
        made
    }

    /// Builds this crate anew, and nothing below it.
    fn time(&self, build: &str) -> Duration {
        let source = self.folder.join("src/lib.rs");
        let text = std::fs::read_to_string(&source).expect("read");
        std::fs::write(&source, text + "\n").expect("written");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.arg(build).arg("--quiet").current_dir(&self.folder).env_remove("CARGO_TARGET_DIR");
        let start = Instant::now();
        assert!(cargo.env("CARGO_INCREMENTAL", "0").status().expect("cargo runs").success());
        start.elapsed()
    }
}

fn median(mut rounds: Vec<Duration>) -> Duration {
    rounds.sort();
    rounds[rounds.len() / 2]
}
