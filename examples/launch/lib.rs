//! Starts programs whose packages are not among the default members of the workspace, so that cargo finds
//! them by `cargo run --example NAME` and `cargo bench --bench all` nevertheless.
//!
//! Cargo builds each of them with the features that its package asks for, and no others.

#![forbid(unsafe_code)]

use std::env;
use std::process::{Command, ExitCode};

/// Runs the example that is this program of this package.
#[must_use]
pub fn example(package: &str, program: &str) -> ExitCode {
    let mut cargo = cargo("run", package);
    cargo.args(["--bin", program]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    cargo.arg("--").args(env::args_os().skip(1));
    become_it(cargo)
}

/// Runs the bench of this package.
#[must_use]
pub fn bench(package: &str) -> ExitCode {
    let mut cargo = cargo("bench", package);
    // Cargo adds `--bench` to the arguments, and does so again.
    cargo.arg("--").args(env::args_os().skip(1).filter(|word| word != "--bench"));
    become_it(cargo)
}

fn cargo(command: &str, package: &str) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let workspace = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");
    cargo.args([command, "--manifest-path", workspace, "--package", package]);
    // What describes the package of this program: a build script that reads it would run again.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    cargo
}

/// Signals reach the program, as they would if cargo had started it at once.
#[cfg(unix)]
fn become_it(mut cargo: Command) -> ExitCode {
    use std::os::unix::process::CommandExt;

    eprintln!("error: {cargo:?}: {}", cargo.exec());
    ExitCode::FAILURE
}

#[cfg(not(unix))]
fn become_it(mut cargo: Command) -> ExitCode {
    match cargo.status() {
        Ok(status) => status.code().map_or(ExitCode::FAILURE, |code| ExitCode::from(code as u8)),
        Err(error) => {
            eprintln!("error: {cargo:?}: {error}");
            ExitCode::FAILURE
        }
    }
}
