//! The texts of the project, and what they name: commands, links, headings.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::packages::{packages, root, target, targets};

/// What is read as prose: each file, and its text.
pub(super) fn documents() -> Vec<(PathBuf, String)> {
    let names = [
        "README.md",
        "ratelimit-cli/README.md",
        "CONTRIBUTING.md",
        "ARCHITECTURE.md",
        "BENCHMARKS.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "examples/compose/README.md",
    ];
    let mut documents: Vec<_> = names.iter().map(|name| read(root().join(name))).collect();
    documents.extend(pages());
    documents
}

pub(super) fn pages() -> Vec<(PathBuf, String)> {
    let files = fs::read_dir(root().join("docs")).expect("a folder");
    let paths = files.map(|file| file.expect("a file").path());
    paths.filter(|path| path.extension().is_some_and(|it| it == "md")).map(read).collect()
}

pub(super) fn example_heads() -> Vec<(PathBuf, String)> {
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

pub(super) fn read(path: PathBuf) -> (PathBuf, String) {
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (path, text)
}

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

/// The commands of shell blocks, without comments, and commands within the text.
pub(super) fn commands(text: &str) -> Vec<String> {
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
                    ["cargo ", "cd models ", "tests/run", ".ci/run"]
                        .iter()
                        .any(|known| span.starts_with(known))
                };
                commands.extend(spans.filter(is_command).map(str::to_owned));
            }
        }
    }
    commands
}

/// The targets of links, in their places and in definitions, outside of code.
pub(super) fn links(text: &str) -> Vec<String> {
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
pub(super) fn anchors(text: &str) -> BTreeSet<String> {
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
