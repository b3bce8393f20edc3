//! `docs/guarantees.md` names a test beside each promise: its program, and which of its tests.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::files::read;
use crate::packages::{packages, root, target};

/// The test program that a row names, and which of its tests.
struct Run<'a> {
    sources: Vec<(PathBuf, String)>,
    /// Whether the test program has a `main` of its own in place of `#[test]` functions.
    has_main: bool,
    filter: Option<&'a str>,
}

/// Returns the last cells of the tables that name tests.
fn named_tests(page: &str) -> Vec<&str> {
    let (mut tests, mut names_tests) = (Vec::new(), false);
    for line in page.lines() {
        let last = line.trim_end_matches('|').rsplit(" | ").next().expect("a cell").trim();
        if !line.starts_with("| ") {
            names_tests = false;
        } else if last == "test" {
            names_tests = true;
        } else if names_tests && !last.starts_with("---") && !last.starts_with("no test") {
            let test = last.strip_prefix('`').and_then(|it| it.strip_suffix('`'));
            tests.push(test.unwrap_or_else(|| panic!("no test: {line}")));
        }
    }
    tests
}

/// Reads all files of Rust in a folder.
pub(super) fn sources_in(folder: &Path) -> Vec<(PathBuf, String)> {
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

fn run<'a>(test: &'a str, packages: &[Value]) -> Option<Run<'a>> {
    let words: Vec<_> = test.split(' ').collect();
    let (sources, has_main, filter) = match words[..] {
        ["models", name, ref filter @ ..] => {
            (vec![read(root().join(format!("models/tests/{name}.rs")))], false, filter)
        }
        ["lib", ref filter @ ..] => {
            (sources_in(&root().join("ratelimit-runtime/src")), false, filter)
        }
        [name, ref filter @ ..] => {
            let (package, test) = target(packages, "test", name)?;
            assert_eq!(package["name"], "tests", "{name}");
            let path = Path::new(test["src_path"].as_str().expect("a path"));
            let sources = match path.file_name() {
                Some(file) if file == "main.rs" => sources_in(path.parent().expect("a folder")),
                _ => vec![read(path.to_owned())],
            };
            // As `harness = false` in the manifest says, which `cargo metadata` does not repeat.
            let has_main = sources.iter().any(|(_, text)| text.contains("\nfn main() "));
            (sources, has_main, filter)
        }
        [] => return None,
    };
    match filter {
        [] => Some(Run { sources, has_main, filter: None }),
        [filter] => Some(Run { sources, has_main, filter: Some(filter) }),
        _ => None,
    }
}

impl Run<'_> {
    /// Returns the files of the tests that run: those with a test of the name, or all files of the program
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
    let tests = named_tests(&page);
    for test in &tests {
        let run = run(test, &packages).unwrap_or_else(|| panic!("no such program: {test}"));
        assert!(!run.files().is_empty(), "`{test}` runs no test");
    }
    assert!(tests.len() > 50, "only {} tests", tests.len());
}

#[test]
fn names_of_no_test_are_found() {
    let packages = packages();
    let has_a_test = |test| run(test, &packages).is_some_and(|run| !run.files().is_empty());
    for test in [
        "soak",
        "matrix primary",
        "judged strict",
        "stores a_deleted_key_starts_from_zero",
        "models leases replies_are_late_and_lost",
    ] {
        assert!(has_a_test(test), "{test}");
    }
    for test in [
        "nosuch",
        "matrix nosuch",
        "stores nosuch",
        // A function, but no test.
        "stores play_traces",
        "models leases nosuch",
        "lib nosuch",
    ] {
        assert!(!has_a_test(test), "{test}");
    }
}

#[test]
fn the_tests_of_faults_exist() {
    let (_, page) = read(root().join("docs/faults.md"));
    let folders = ["tests", "models/tests", "ratelimit-runtime/src"];
    let sources: Vec<_> = folders.iter().flat_map(|it| sources_in(&root().join(it))).collect();
    let last_cells = page.lines().filter_map(|line| line.strip_suffix(" |")?.rsplit(" | ").next());
    let mut checked = 0;
    for name in last_cells.flat_map(|cell| cell.split(", ")) {
        let exists = match name.strip_prefix('`').and_then(|it| it.strip_suffix('`')) {
            // Some programs make their tests from a list of names.
            Some(name) => sources.iter().any(|(_, text)| {
                text.contains(&format!("fn {name}(")) || text.contains(&format!("\"{name}\""))
            }),
            None => !name.starts_with("tests/") || root().join(name).exists(),
        };
        assert!(exists, "no test {name}");
        checked += 1;
    }
    assert!(checked > 80, "only {checked} tests");
}
