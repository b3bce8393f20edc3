//! The texts of the project.

use std::fs;
use std::path::{Path, PathBuf};

use crate::packages::{packages, root, target, targets};

/// What is read as prose: each file, and its text.
pub(super) fn documents() -> Vec<(PathBuf, String)> {
    let names = [
        "README.md",
        "CONTRIBUTING.md",
        "ARCHITECTURE.md",
        "BENCHMARKS.md",
        "CHANGELOG.md",
        "SECURITY.md",
    ];
    let mut documents: Vec<_> = names.iter().map(|name| read(root().join(name))).collect();
    documents.extend(pages());
    documents
}

/// The pages of `docs/`.
pub(super) fn pages() -> Vec<(PathBuf, String)> {
    let files = fs::read_dir(root().join("docs")).expect("a folder");
    let paths = files.map(|file| file.expect("a file").path());
    paths.filter(|path| path.extension().is_some_and(|it| it == "md")).map(read).collect()
}

/// The comments at the beginning of the examples.
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

/// The examples, the documentation of the attribute, and the documentation comments of the runtime.
pub(super) fn sources() -> Vec<(PathBuf, String)> {
    let mut sources = vec![read(root().join("docs/rate_limit.md"))];
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

pub(super) fn read(path: PathBuf) -> (PathBuf, String) {
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (path, text)
}
