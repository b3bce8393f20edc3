//! `docs/guarantees.md` names beside each promise the file of a test, and the command that runs it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::files::read;
use crate::packages::{packages, root, target};

/// A row of a table whose last column is a command.
struct Row<'a> {
    file: &'a str,
    command: &'a str,
}

/// The test program that a command runs, and which of its tests.
struct Run<'a> {
    sources: Vec<(PathBuf, String)>,
    /// Whether the test program has a `main` of its own in place of `#[test]` functions.
    has_main: bool,
    filter: Option<&'a str>,
}

/// Returns the rows that name a test.
fn rows(page: &str) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    let mut names_commands = false;
    for line in page.lines() {
        let Some(line) = line.strip_prefix("| ") else {
            names_commands = false;
            continue;
        };
        let cells: Vec<_> = line.trim_end_matches('|').split(" | ").map(str::trim).collect();
        let [.., file, command] = cells[..] else { panic!("{line}") };
        if command == "command" {
            names_commands = true;
        } else if names_commands && !file.starts_with("---") && !file.starts_with("no test") {
            let file = file.split_once("](../").and_then(|(_, rest)| rest.strip_suffix(')'));
            let file = file.unwrap_or_else(|| panic!("no file: {line}"));
            let command = command.strip_prefix('`').and_then(|it| it.strip_suffix('`'));
            rows.push(Row {
                file,
                command: command.unwrap_or_else(|| panic!("no command: {line}")),
            });
        }
    }
    rows
}

/// Reads all files of Rust in a folder.
fn sources_in(folder: &Path) -> Vec<(PathBuf, String)> {
    let entries = fs::read_dir(folder).unwrap_or_else(|_| panic!("no {}", folder.display()));
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .flat_map(|path| match path.extension() {
            _ if path.is_dir() => sources_in(&path),
            Some(extension) if extension == "rs" => vec![read(path)],
            _ => Vec::new(),
        })
        .collect()
}

fn run<'a>(command: &'a str, packages: &[Value]) -> Option<Run<'a>> {
    let words: Vec<_> = command.split(' ').collect();
    let (sources, has_main, filter) = match words[..] {
        ["cd", "models", "&&", "cargo", "test", "--test", name, ref filter @ ..] => {
            (vec![read(root().join(format!("models/tests/{name}.rs")))], false, filter)
        }
        [
            "cargo",
            "test",
            "-p",
            "ratelimit-runtime",
            "--all-features",
            "--lib",
            ref filter @ ..,
        ] => (sources_in(&root().join("ratelimit-runtime/src")), false, filter),
        ["cargo", "test", "-p", "tests", "--all-features", "--test", name, ref filter @ ..] => {
            let (package, test) = target(packages, "test", name)?;
            assert_eq!(package["name"], "tests", "{command}");
            let path = Path::new(test["src_path"].as_str().expect("a path"));
            let sources = match path.file_name() {
                Some(file) if file == "main.rs" => sources_in(path.parent().expect("a folder")),
                _ => vec![read(path.to_owned())],
            };
            // As `harness = false` in the manifest says, which `cargo metadata` does not repeat.
            let has_main = sources.iter().any(|(_, text)| text.contains("\nfn main() "));
            (sources, has_main, filter)
        }
        _ => return None,
    };
    match filter {
        [] => Some(Run { sources, has_main, filter: None }),
        [filter] => Some(Run { sources, has_main, filter: Some(filter) }),
        _ => None,
    }
}

impl Run<'_> {
    /// Returns the files of the tests that the command runs: those with a test of the name, or all files of the program
    /// if the name is that of a module.
    fn files(&self) -> Vec<&Path> {
        let all = || self.sources.iter().map(|(path, _)| &**path);
        let Some(filter) = self.filter else { return all().collect() };
        let name = filter.rsplit("::").next().expect("a name");
        let is_module = |(path, text): &(PathBuf, String)| {
            path.file_stem().is_some_and(|stem| stem == name)
                || path.ends_with(format!("{name}/mod.rs"))
                || text.contains(&format!("mod {name} {{"))
        };
        let is_picked = |(_, text): &(PathBuf, String)| text.contains(&format!("\"{name}"));
        let sources = self.sources.iter();
        let has_name = |(_, text): &&(PathBuf, String)| has_test(text, name);
        let named: Vec<_> = sources.filter(has_name).map(|(path, _)| &**path).collect();
        let is_path = filter.contains("::") && !named.is_empty();
        let mut sources = self.sources.iter();
        let is_found = if self.has_main { sources.any(is_picked) } else { sources.any(is_module) };
        if is_path || is_found { all().collect() } else { named }
    }
}

/// Returns whether a source has a function of this name which is a test: by an attribute, or in a macro that makes a
/// test for each store.
fn has_test(source: &str, name: &str) -> bool {
    source.match_indices(&format!("fn {name}(")).any(|(at, _)| {
        let line = source[at..].lines().next().expect("a line");
        let mut before = source[..at].lines().rev().take(3);
        line.contains("TestLimiter")
            || before.any(|line| line.contains("test]") || line.contains("::test("))
    })
}

#[test]
fn a_test_stands_beside_each_promise() {
    let packages = packages();
    let (_, page) = read(root().join("docs/guarantees.md"));
    let rows = rows(&page);
    for Row { file, command } in &rows {
        let run = run(command, &packages).unwrap_or_else(|| panic!("no such command: {command}"));
        assert!(!run.files().is_empty(), "`{command}` runs no test");
        assert!(run.files().contains(&&*root().join(file)), "`{command}` runs no test of {file}");
    }
    assert!(rows.len() > 50, "only {} rows", rows.len());
}

#[test]
fn commands_that_run_no_test_are_found() {
    let packages = packages();
    let has_a_test = |command| run(command, &packages).is_some_and(|run| !run.files().is_empty());
    for command in [
        "cargo test -p tests --all-features --test soak",
        "cargo test -p tests --all-features --test matrix primary",
        "cargo test -p tests --all-features --test judged strict",
        "cargo test -p tests --all-features --test stores a_deleted_key_starts_from_zero",
        "cd models && cargo test --test leases replies_are_late_and_lost",
    ] {
        assert!(has_a_test(command), "{command}");
    }
    for command in [
        "cargo test -p tests --test soak",
        "cargo test -p tests --all-features --test nosuch",
        "cargo test -p tests --all-features --test matrix nosuch",
        "cargo test -p tests --all-features --test stores nosuch",
        // A function, but no test.
        "cargo test -p tests --all-features --test stores play_traces",
        "cd models && cargo test --test leases nosuch",
        "cargo test -p ratelimit-runtime --all-features --lib nosuch",
    ] {
        assert!(!has_a_test(command), "{command}");
    }
}
