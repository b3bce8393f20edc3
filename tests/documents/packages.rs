//! The packages of the workspace, and whether what a command names is in them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::example::output;
use support::sources::root;

/// Whether what a command names exists: examples, tests, benches, features, paths.
pub(super) fn check(command: &str, packages: &[Value]) -> Result<(), String> {
    let is_variable = |word: &&str| {
        let name = word.split_once('=').map(|(name, _)| name);
        name.is_some_and(|name| name.chars().all(|it| it.is_ascii_uppercase() || it == '_'))
    };
    let words: Vec<_> = command.split_whitespace().skip_while(is_variable).collect();
    let after = |option: &str| words.iter().skip_while(|word| **word != option).nth(1).copied();
    match words.first() {
        Some(&"cargo") => {}
        Some(script) if script.starts_with("tests/") || script.starts_with(".ci/") => {
            if !root().join(script).is_file() {
                return Err(format!("no script {script}"));
            }
        }
        _ => return Ok(()),
    }
    let found = |kind: &str| {
        let name = after(&format!("--{kind}")).filter(|name| *name != "NAME");
        let found = |name: &str| target(packages, kind, name).ok_or(format!("no {kind} {name}"));
        name.map(found).transpose()
    };
    found("test")?;
    if let Some((package, example)) = found("example")? {
        let given: Vec<_> =
            after("--features").into_iter().flat_map(|all| all.split(',')).collect();
        if let Some(unknown) = given.iter().find(|one| package["features"].get(**one).is_none()) {
            return Err(format!("no feature {unknown}"));
        }
        let required = example["required-features"].as_array().into_iter().flatten();
        for feature in required.filter_map(Value::as_str) {
            if !given.contains(&feature) && !words.contains(&"--all-features") {
                return Err(format!("it needs --features {feature}"));
            }
        }
    }
    if let Some((_, bench)) = found("bench")? {
        let source = bench["src_path"].as_str().expect("a path");
        let source = fs::read_to_string(source).expect("UTF-8");
        for part in words.iter().skip_while(|word| **word != "--").skip(1) {
            if *part != "quick" && !source.contains(&format!("(\"{part}\", ")) {
                return Err(format!("no part {part}"));
            }
        }
    }
    if let Some(path) = after("--path") {
        // From here, or from a package beside the clone.
        let name = Path::new(path).file_name().expect("a name");
        let is_package = |folder: PathBuf| folder.join("Cargo.toml").is_file();
        if !is_package(root().join(path)) && !is_package(root().join(name)) {
            return Err(format!("no package {path}"));
        }
    }
    Ok(())
}

pub(super) fn packages() -> Vec<Value> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&output(command)).expect("JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

pub(super) fn targets(packages: &[Value], kind: &str) -> BTreeSet<String> {
    let targets = packages.iter().filter_map(|package| package["targets"].as_array()).flatten();
    let of_kind = targets.filter(|target| target["kind"][0] == kind);
    of_kind.map(|target| target["name"].as_str().expect("a name").to_owned()).collect()
}

pub(super) fn target<'a>(
    packages: &'a [Value],
    kind: &str,
    name: &str,
) -> Option<(&'a Value, &'a Value)> {
    packages.iter().find_map(|package| {
        let mut targets = package["targets"].as_array()?.iter();
        let target = targets.find(|one| one["kind"][0] == kind && one["name"] == name)?;
        Some((package, target))
    })
}
