//! The packages of the workspace, and whether what a command names is in them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Whether what a command names exists: examples, tests, benches, features, paths.
pub(super) fn check(command: &str, packages: &[Value]) -> Result<(), String> {
    let is_variable = |word: &&str| {
        word.split_once('=').is_some_and(|(name, _)| {
            name.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_')
        })
    };
    let words: Vec<_> = command.split_whitespace().skip_while(is_variable).collect();
    let after = |option: &str| {
        let at = words.iter().position(|word| *word == option)?;
        words.get(at + 1).copied()
    };
    match words.first() {
        Some(&"cargo") => {}
        Some(script) if script.starts_with("tests/") || script.starts_with(".ci/") => {
            if !root().join(script).is_file() {
                return Err(format!("no script {script}"));
            }
        }
        _ => return Ok(()),
    }
    for (option, kind) in [("--example", "example"), ("--test", "test"), ("--bench", "bench")] {
        let Some(name) = after(option).filter(|name| *name != "NAME") else { continue };
        if !targets(packages, kind).contains(name) {
            return Err(format!("no {kind} {name}"));
        }
    }
    if let Some(name) = after("--example").filter(|name| *name != "NAME") {
        let (package, example) = target(packages, "example", name).expect("it was found above");
        let given = after("--features").map(|all| all.split(',').collect::<Vec<_>>());
        let given = given.unwrap_or_default();
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
    if let Some(name) = after("--bench") {
        let (_, bench) = target(packages, "bench", name).expect("it was found above");
        let source = bench["src_path"].as_str().expect("a path");
        let source = fs::read_to_string(source).expect("UTF-8");
        let parts = words.iter().skip_while(|word| **word != "--").skip(1);
        for part in parts {
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

/// The folder of the whole workspace, in whichever package this test is.
pub(super) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.ancestors().find(|folder| folder.join("Cargo.lock").is_file());
    root.expect("a workspace").to_owned()
}

pub(super) fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
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
