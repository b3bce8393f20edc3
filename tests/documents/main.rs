//! The commands and the links in the README, the guides and the heads of the examples lead somewhere.
//!
//! The code in these documents is run elsewhere: snippets of Rust as documentation tests of
//! `ratelimit-runtime` (see its `lib.rs`), examples by `tests/examples`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

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
        for link in links(&text) {
            if link.contains(':') {
                continue; // another site
            }
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
    let readme = fs::read_to_string(root().join("README.md")).expect("the README");
    for name in targets(&packages(), "example") {
        // The pictures belong to a guide, which names the command.
        if name != "pictures" {
            assert!(readme.contains(&name), "README.md does not name the example {name}");
        }
    }
    for (guide, _) in guides() {
        let name = guide.file_name().expect("a name").to_string_lossy().into_owned();
        let link = format!("](ratelimit-runtime/docs/{name})");
        assert!(readme.contains(&link), "README.md does not link to {name}");
    }
}

/// Runs the `cargo add` commands of the README in a new package.
#[test]
fn the_commands_of_use_it_add_the_dependencies() {
    let folder = tempfile::tempdir().expect("a folder");
    let cargo = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO"));
        let output = command.args(words).current_dir(folder.path()).output().expect("cargo runs");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    cargo(&["init", "--name", "shop", "--vcs", "none"]);
    let readme = fs::read_to_string(root().join("README.md")).expect("the README");
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

/// The alerts and the dashboard name metrics that the library records, with values that their labels have.
#[test]
fn the_monitoring_files_name_metrics_that_exist() {
    let known = read(root().join("ratelimit-runtime/src/report/metrics.rs")).1
        + &read(root().join("ratelimit-runtime/src/report/mod.rs")).1;
    let folder = root().join("ratelimit-runtime/docs/monitoring");
    let (alerts, dashboard) =
        (read(folder.join("alerts.yml")).1, read(folder.join("dashboard.json")).1);
    let dashboard: Value = serde_json::from_str(&dashboard).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let queries = targets.map(|target| target["expr"].as_str().expect("a query").to_owned());
    let text = queries.chain([alerts]).collect::<Vec<_>>().join("\n");

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

/// The guide about security names the file and the test after each statement.
#[test]
fn the_tests_that_the_guide_about_security_names_exist() {
    let (_, guide) = read(root().join("ratelimit-runtime/docs/security.md"));
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
    let mut checked = 0;
    for (file, text) in documents().into_iter().chain(sources()) {
        for (hole, reason) in HOLES {
            assert!(!text.contains(hole), "{}: `{hole}`: {reason}", file.display());
        }
        checked += 1;
    }
    assert!(checked > 150, "only {checked} files");
}

#[test]
fn mistakes_are_found() {
    let packages = packages();
    for command in [
        "cargo run --example nosuch",
        "cargo run --example axum --features nosuch",
        "cargo test --test nosuch",
        "tests/run --test nosuch",
        "cargo bench --bench all -- nosuch",
        "tests/nosuch",
    ] {
        assert!(check(command, &packages).is_err(), "{command}");
    }
    for command in ["PORT=1 cargo run --example axum --features metrics", "tests/run"] {
        assert_eq!(check(command, &packages), Ok(()), "{command}");
    }
    let text = "# One\n```sh\ncargo a \\\n  b   # c\n```\nsee `cargo d` and [e](f.md#g)\n## What `is` it?\n[h]: i.md";
    assert_eq!(commands(text), ["cargo a b", "cargo d"]);
    assert_eq!(links(text), ["f.md#g", "i.md"]);
    assert_eq!(anchors(text), BTreeSet::from(["one".to_owned(), "what-is-it".to_owned()]));
}

/// Whether what a command names exists: examples, tests, benches, features, paths.
fn check(command: &str, packages: &[Value]) -> Result<(), String> {
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

/// The commands of shell blocks, without comments, and commands within the text.
fn commands(text: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut block = None::<&str>;
    let mut begun = String::new();
    for line in text.lines() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            block = if block.is_some() { None } else { Some(language) };
            continue;
        }
        match block {
            Some("sh") => {
                let code = line.split("  #").next().unwrap_or_default().trim();
                begun.push_str(code.trim_end_matches('\\'));
                if !code.ends_with('\\') {
                    let words: Vec<_> = begun.split_whitespace().collect();
                    if !words.is_empty() && !words[0].starts_with('#') {
                        commands.push(words.join(" "));
                    }
                    begun.clear();
                }
            }
            Some(_) => {}
            None => {
                let spans = line.split('`').skip(1).step_by(2);
                let is_command = |span: &&str| {
                    ["cargo ", "tests/run", ".ci/run"].iter().any(|known| span.starts_with(known))
                };
                commands.extend(spans.filter(is_command).map(str::to_owned));
            }
        }
    }
    commands
}

/// The targets of links, in their places and in definitions, outside of code.
fn links(text: &str) -> Vec<String> {
    let mut links = Vec::new();
    let mut is_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            let inline = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
            links.extend(inline.map(|(target, _)| target.to_owned()));
            if let Some((_, target)) = line.split_once("]: ")
                && line.starts_with('[')
            {
                links.push(target.to_owned());
            }
        }
    }
    links
}

/// The anchors that GitHub gives to headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut is_code = false;
    let mut anchors = BTreeSet::new();
    for line in text.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        } else if !is_code && line.starts_with('#') {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|one| one.is_alphanumeric() || " -_".contains(*one));
            anchors.insert(kept.map(|one| if one == ' ' { '-' } else { one }).collect());
        }
    }
    anchors
}

/// What is read as prose: each file, and its text.
fn documents() -> Vec<(PathBuf, String)> {
    let names = ["README.md", "CONTRIBUTING.md", "BENCHMARKS.md", "CHANGELOG.md"];
    let mut documents: Vec<_> = names.iter().map(|name| read(root().join(name))).collect();
    documents.extend(guides());
    documents
}

fn guides() -> Vec<(PathBuf, String)> {
    let files = fs::read_dir(root().join("ratelimit-runtime/docs")).expect("the guides");
    let paths = files.map(|file| file.expect("a file").path());
    paths.filter(|path| path.extension().is_some_and(|it| it == "md")).map(read).collect()
}

/// The comments at the beginning of the examples.
fn example_heads() -> Vec<(PathBuf, String)> {
    let packages = packages();
    let sources = targets(&packages, "example").into_iter().map(|name| {
        let (_, example) = target(&packages, "example", &name).expect("it is listed");
        let (path, text) = read(example["src_path"].as_str().expect("a path").into());
        let head = text.lines().map_while(|line| line.strip_prefix("//!"));
        let head: Vec<_> = head.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
        (path, head.join("\n"))
    });
    sources.collect()
}

/// The examples, the documentation of the attribute, and the documentation comments of the runtime.
fn sources() -> Vec<(PathBuf, String)> {
    let mut sources = vec![read(root().join("ratelimit-macros/docs/rate_limit.md"))];
    let mut folders = vec![root().join("examples"), root().join("ratelimit-runtime/src")];
    while let Some(folder) = folders.pop() {
        let is_examples = folder.ends_with("examples");
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            // The folders of the examples contain programs that are no patterns.
            if path.is_dir() {
                folders.extend((!is_examples).then_some(path));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources.push(read(path));
            }
        }
    }
    let comments = |text: String| {
        let lines = text.lines().filter(|line| line.trim_start().starts_with("//"));
        lines.collect::<Vec<_>>().join("\n")
    };
    let is_example = |path: &Path| path.starts_with(root().join("examples"));
    let kept = sources.into_iter().map(|(path, text)| {
        let is_whole = is_example(&path) || path.extension().is_some_and(|it| it == "md");
        if is_whole { (path, text) } else { (path, comments(text)) }
    });
    kept.collect()
}

fn read(path: PathBuf) -> (PathBuf, String) {
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (path, text)
}

/// The folder of the whole workspace, in whichever package this test is.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.ancestors().find(|folder| folder.join("Cargo.lock").is_file());
    root.expect("a workspace").to_owned()
}

/// The packages of the workspace, as `cargo metadata` describes them.
fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

fn targets(packages: &[Value], kind: &str) -> BTreeSet<String> {
    let targets = packages.iter().filter_map(|package| package["targets"].as_array()).flatten();
    let of_kind = targets.filter(|target| target["kind"][0] == kind);
    of_kind.map(|target| target["name"].as_str().expect("a name").to_owned()).collect()
}

/// A target, and its package.
fn target<'a>(packages: &'a [Value], kind: &str, name: &str) -> Option<(&'a Value, &'a Value)> {
    packages.iter().find_map(|package| {
        let mut targets = package["targets"].as_array()?.iter();
        let target = targets.find(|one| one["kind"][0] == kind && one["name"] == name)?;
        Some((package, target))
    })
}
