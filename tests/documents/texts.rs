//! The texts of the project, and what they name: commands, links, headings.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use support::sources::{files, root};

use crate::packages::{packages, target, targets};

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
    files(folder, &["rs"]).into_iter().map(read).collect()
}

/// The commands of shell blocks, without comments, and commands within the text.
pub(super) fn commands(text: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let (mut block, mut begun) = (None::<&str>, String::new());
    for line in text.lines() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            block = if block.is_some() { None } else { Some(language) };
        } else if block == Some("sh") {
            let code = line.split("  #").next().unwrap_or_default().trim();
            begun.push_str(code.trim_end_matches('\\'));
            if !code.ends_with('\\') {
                let words: Vec<_> = begun.split_whitespace().collect();
                if words.first().is_some_and(|word| !word.starts_with('#')) {
                    commands.push(words.join(" "));
                }
                begun.clear();
            }
        } else if block.is_none() {
            let known = ["cargo ", "cd models ", "tests/run", ".ci/run"];
            let is_command = |span: &&str| known.iter().any(|known| span.starts_with(known));
            let spans = line.split('`').skip(1).step_by(2);
            commands.extend(spans.filter(is_command).map(str::to_owned));
        }
    }
    commands
}

/// The lines outside of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The targets of links, in their places and in definitions.
pub(super) fn links(text: &str) -> Vec<String> {
    let of_line = |line: &str| {
        let inline = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        let definition = line.split_once("]: ").filter(|_| line.starts_with('['));
        let targets = inline.map(|(target, _)| target).chain(definition.map(|(_, target)| target));
        targets.map(str::to_owned).collect::<Vec<_>>()
    };
    prose(text).flat_map(of_line).collect()
}

/// The anchors that GitHub gives to headings.
pub(super) fn anchors(text: &str) -> BTreeSet<String> {
    let anchor = |line: &str| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|one| one.is_alphanumeric() || " -_".contains(*one));
        kept.map(|one| if one == ' ' { '-' } else { one }).collect()
    };
    prose(text).filter(|line| line.starts_with('#')).map(anchor).collect()
}
