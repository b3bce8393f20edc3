//! The commands and the links in the README, the guides and the heads of the examples lead somewhere.
//!
//! The code in these documents is run elsewhere: snippets of Rust as documentation tests of
//! `ratelimit-runtime` (see its `lib.rs`), examples by `tests/examples`.

mod compose;
mod packages;
mod promises;
mod texts;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use support::example::output;
use support::sources::root;

use self::packages::{check, packages, targets};
use self::texts::{anchors, commands, documents, example_heads, links, pages, read, sources_in};

#[test]
fn commands_name_things_that_exist() {
    let packages = packages();
    let mut checked = 0;
    for (file, text) in documents().into_iter().chain(example_heads()) {
        for command in commands(&text) {
            if let Err(problem) = check(&command, &packages) {
                panic!("{}: `{command}`: {problem}", file.display());
            }
            checked += 1;
        }
    }
    assert!(checked > 30, "only {checked} commands found");
}

#[test]
fn links_lead_to_files_and_headings() {
    for (file, text) in documents() {
        // Those with a colon lead to another site.
        for link in links(&text).into_iter().filter(|link| !link.contains(':')) {
            let (path, heading) = link.split_once('#').unwrap_or((&link, ""));
            let folder = file.parent().expect("a folder");
            let target = if path.is_empty() { file.clone() } else { folder.join(path) };
            assert!(target.exists(), "{}: no file {link}", file.display());
            if !heading.is_empty() {
                let text = fs::read_to_string(&target).expect("UTF-8");
                assert!(anchors(&text).contains(heading), "{}: no heading {link}", file.display());
            }
        }
    }
}

#[test]
fn the_readme_lists_every_example_and_guide() {
    let readme = read(root().join("README.md")).1;
    // The pictures belong to a guide, which names the command.
    for name in targets(&packages(), "example").into_iter().filter(|name| name != "pictures") {
        assert!(readme.contains(&name), "README.md does not name the example {name}");
    }
    for (page, _) in pages() {
        let name = page.file_name().expect("a name").to_string_lossy();
        assert!(readme.contains(&format!("](docs/{name})")), "README.md does not link to {name}");
    }
}

/// The README of the package is a link to the one of the project.
#[test]
fn the_package_has_what_its_readme_shows() {
    let list = ["package", "--list", "--allow-dirty", "--offline", "-p", "ratelimit-runtime"];
    let mut command = Command::new(env!("CARGO"));
    command.args(list).current_dir(root());
    let packed = output(command);
    let packed: BTreeSet<_> = packed.lines().collect();
    let readme = read(root().join("README.md")).1;
    let pictures = ["srcset=\"", "src=\""].into_iter().flat_map(|start| {
        readme.split(start).skip(1).map(|rest| rest.split('"').next().expect("a path").to_owned())
    });
    let shown = links(&readme).into_iter().filter(|link| !link.contains(':')).chain(pictures);
    let shown: Vec<_> =
        shown.map(|link| link.split('#').next().expect("a path").to_owned()).collect();
    assert!(shown.len() > 15, "{shown:?}");
    for path in shown {
        assert!(packed.contains(&*path), "{path}: {packed:?}");
    }
}

#[test]
fn the_commands_of_use_it_add_the_dependencies() {
    let folder = tempfile::tempdir().expect("a folder");
    let cargo = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO"));
        command.args(words).current_dir(folder.path());
        output(command);
    };
    cargo(&["init", "--name", "shop", "--vcs", "none"]);
    let readme = read(root().join("README.md")).1;
    let here = root().join("ratelimit-runtime").display().to_string();
    let added = commands(&readme).into_iter().filter(|command| command.starts_with("cargo add "));
    for command in added {
        // The README is about a clone beside the package.
        let command = command.replace("../ratelimit/ratelimit-runtime", &here);
        let words: Vec<_> = command.split(' ').skip(1).chain(["--offline"]).collect();
        cargo(&words);
    }
    let manifest = fs::read_to_string(folder.path().join("Cargo.toml")).expect("a manifest");
    for dependency in ["ratelimit-runtime", "tokio"] {
        assert!(manifest.contains(&format!("\n{dependency} = ")), "{manifest}");
    }
}

#[test]
fn the_monitoring_files_name_metrics_that_exist() {
    let known = read(root().join("ratelimit-runtime/src/report/metrics.rs")).1
        + &read(root().join("ratelimit-runtime/src/report/mod.rs")).1;
    let folder = root().join("docs/monitoring");
    let dashboard = read(folder.join("dashboard.json")).1;
    let dashboard: Value = serde_json::from_str(&dashboard).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let mut text = read(folder.join("alerts.yml")).1;
    text.extend(targets.map(|it| format!("\n{}", it["expr"].as_str().expect("a query"))));

    let mut checked = BTreeSet::new();
    let is_name = |letter: char| letter.is_ascii_lowercase() || letter == '_';
    for word in text.split(|letter| !is_name(letter)).filter(|word| word.starts_with("ratelimit_"))
    {
        let name = word.trim_end_matches("_bucket").trim_end_matches("_count");
        assert!(known.contains(&format!("\"{name}\"")), "no metric {name}");
        checked.insert(name);
    }
    assert_eq!(checked.len(), 7, "{checked:?}");
    for label in ["outcome=\"", "source=\"", "outcome=~\""] {
        for (at, _) in text.match_indices(label) {
            let values = text[at + label.len()..].split('"').next().expect("a value");
            for value in values.split('|') {
                assert!(known.contains(&format!("\"{value}\"")), "no value {label}{value}");
            }
        }
    }
}

#[test]
fn the_tests_that_the_guide_about_security_names_exist() {
    let (_, guide) = read(root().join("docs/security.md"));
    let spans: Vec<_> = guide.split('`').skip(1).step_by(2).collect();
    let is_file = |span: &str| span.starts_with("tests/") || span.starts_with("ratelimit-runtime/");
    let tests: Vec<_> = spans.windows(2).filter(|pair| is_file(pair[0])).collect();
    for pair in &tests {
        let (path, name) = (pair[0], pair[1]);
        let (_, source) = read(root().join(path));
        assert!(source.contains(&format!("fn {name}(")), "no test {name} in {path}");
    }
    assert!(tests.len() > 25, "only {} tests", tests.len());
}

/// Code that looks right and does not limit: its text, and the reason.
const HOLES: [(&str, &str); 9] = [
    ("get(\"x-api-key\").ok_or", "a client can send a new key with each request"),
    ("uri.path().to_owned()", "a client can send a new path with each request"),
    ("uri.path(), 1)", "a client can send a new path with each request"),
    ("address: IpAddr", "an IPv6 client has 2^64 addresses: use `Client`"),
    ("host().map(str::to_owned)", "`Example.COM.` and `example.com` are one host: use `host_key`"),
    (".len() as u32", "the length of a large value wraps to a small cost"),
    ("/ 3) as u32", "the length of a large value wraps to a small cost"),
    ("prompt.tokens + prompt.", "the sum of two large values wraps to a small cost"),
    ("UNAVAILABLE, format!(\"{error}", "the error of Redis is not for strangers"),
];

#[test]
fn examples_and_guides_limit_what_they_seem_to_limit() {
    let examples = root().join("examples");
    // The folders of the examples contain programs that are no patterns.
    let is_pattern = |(path, _): &(PathBuf, String)| path.parent() == Some(&*examples);
    let comments = |(path, text): (PathBuf, String)| {
        let lines = text.lines().filter(|line| line.trim_start().starts_with("//"));
        (path, lines.collect::<Vec<_>>().join("\n"))
    };
    let of_examples = sources_in(&examples).into_iter().filter(is_pattern);
    let of_runtime = sources_in(&root().join("ratelimit-runtime/src")).into_iter().map(comments);
    let texts: Vec<_> = documents().into_iter().chain(of_examples).chain(of_runtime).collect();
    for (file, text) in &texts {
        for (hole, reason) in HOLES {
            assert!(!text.contains(hole), "{}: `{hole}`: {reason}", file.display());
        }
    }
    assert!(texts.len() > 150, "only {} files", texts.len());
}
