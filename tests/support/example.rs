//! The examples and the command `ratelimit`, as the programs that they are.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

pub fn example(name: &str) -> Command {
    static BUILT: Once = Once::new();
    let folder = folder();
    BUILT.call_once(|| build(&folder, &["--bins", "--examples"]));
    // Those with packages of their own are no examples to cargo; see `examples/launch`.
    let program = folder.join(name);
    Command::new(if program.exists() { program } else { folder.join("examples").join(name) })
}

/// Returns the command `ratelimit`, without settings of this process.
pub fn ratelimit() -> Command {
    static BUILT: Once = Once::new();
    let folder = folder();
    BUILT.call_once(|| build(&folder, &["--bin", "ratelimit"]));
    let mut command = Command::new(folder.join("ratelimit"));
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("RATELIMIT_") {
            command.env_remove(name);
        }
    }
    command.env_remove("RUST_BACKTRACE").env("USER", "alice");
    command
}

/// Returns the folder of the programs of the profile of this test.
fn folder() -> PathBuf {
    let test = env::current_exe().expect("this program has a path");
    test.ancestors().nth(2).expect("the folder of the profile").to_owned()
}

/// Builds programs with the profile and the features of this test, so that nothing is compiled twice.
fn build(folder: &Path, targets: &[&str]) {
    // The folder of a profile has its name, except that of `dev`.
    let profile = folder.file_name().filter(|name| *name != "debug").unwrap_or("dev".as_ref());
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--workspace", "--all-features"]).args(targets);
    cargo.arg("--profile").arg(profile);
    // What describes the package of this test: a build script that reads it would run again.
    for (name, _) in env::vars_os() {
        let variable = name.to_string_lossy();
        if variable.starts_with("CARGO_PKG_") || variable.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    assert!(cargo.status().expect("cargo runs").success(), "{targets:?} do not build");
}

/// Runs a program that has to succeed, and returns its output.
pub fn output(mut command: Command) -> String {
    let output = command.output().expect("it starts");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Runs a program that has to fail, and returns its error.
pub fn error_output(mut command: Command) -> String {
    let output = command.output().expect("it starts");
    let text = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1), "{text}");
    text
}
