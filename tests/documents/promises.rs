//! `docs/guarantees.md` names a test beside each promise: its program, and which of its tests.

use std::path::{Path, PathBuf};

use serde_json::Value;

use support::sources::root;

use crate::packages::{packages, target};
use crate::texts::{read, sources_in};

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

/// Returns whether a row of the tables runs a test: `stores a_test`, `stores a_module`, `models leases`, `lib time`.
fn runs_a_test(row: &str, packages: &[Value]) -> bool {
    let mut words = row.split(' ');
    let sources = match words.next().unwrap_or_default() {
        "models" => {
            let name = words.next().unwrap_or_default();
            vec![read(root().join(format!("models/tests/{name}.rs")))]
        }
        "lib" => sources_in(&root().join("ratelimit-runtime/src")),
        name => {
            let Some((_, test)) = target(packages, "test", name) else { return false };
            let path = Path::new(test["src_path"].as_str().expect("a path"));
            match path.parent() {
                Some(folder) if path.ends_with("main.rs") => sources_in(folder),
                _ => vec![read(path.to_owned())],
            }
        }
    };
    let Some(filter) = words.next() else { return true };
    let name = filter.rsplit("::").next().unwrap_or(filter);
    // A program with a `main` of its own in place of `#[test]` functions has its tests in a list.
    let has_main = sources.iter().any(|(_, text)| text.contains("\nfn main() "));
    let is_module = |path: &Path, text: &str| {
        path.file_stem().is_some_and(|stem| stem == name)
            || path.ends_with(format!("{name}/mod.rs"))
            || text.contains(&format!("mod {name} {{"))
    };
    let has_name = |(path, text): &(PathBuf, String)| {
        let is_listed = has_main && text.contains(&format!("\"{name}"));
        has_test(text, name) || is_listed || !has_main && is_module(path, text)
    };
    words.next().is_none() && sources.iter().any(has_name)
}

/// Returns whether a source has a function of this name which is a test: by an attribute, or in a macro that makes a
/// test for each store, or of each row of a table.
fn has_test(source: &str, name: &str) -> bool {
    is_row(source, name)
        || source.match_indices(&format!("fn {name}(")).any(|(at, _)| {
            let line = source[at..].lines().next().expect("a line");
            let mut before = source[..at].lines().rev().take(3);
            line.contains("TestLimiter")
                || before.any(|line| line.contains("test]") || line.contains("::test("))
        })
}

/// Returns whether a table of tests has a row of this name.
fn is_row(source: &str, name: &str) -> bool {
    source.contains("\ntests! {\n") && source.contains(&format!("\n    {name}:"))
}

#[test]
fn a_test_stands_beside_each_promise() {
    let packages = packages();
    let (_, page) = read(root().join("docs/guarantees.md"));
    let tests = named_tests(&page);
    for test in &tests {
        assert!(runs_a_test(test, &packages), "`{test}` runs no test");
    }
    assert!(tests.len() > 50, "only {} tests", tests.len());
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
                text.contains(&format!("fn {name}("))
                    || text.contains(&format!("\"{name}\""))
                    || is_row(text, name)
            }),
            None => !name.starts_with("tests/") || root().join(name).exists(),
        };
        assert!(exists, "no test {name}");
        checked += 1;
    }
    assert!(checked > 80, "only {checked} tests");
}
