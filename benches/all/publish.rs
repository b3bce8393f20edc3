//! Writes the tables that users ask for into their places in `BENCHMARKS.md`, and all tables into
//! `benches/results/`.
//!
//! A place is between `<!-- measured: id -->` and `<!-- end -->`. All other text is written by hand, and contains
//! no figures.

use std::path::{Path, PathBuf};

use crate::table::{Block, Body};

const RESULTS: &str = "benches/results";

/// The significant digits on the page. A busy host changes the third.
const DIGITS: i32 = 2;

pub(crate) fn publish(blocks: &[Block], quick: bool) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let to =
        if quick { PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("quick") } else { root.clone() };
    std::fs::create_dir_all(to.join(RESULTS)).expect("a folder");
    for block in blocks {
        let Body::Table(table) = &block.body else { continue };
        let results = to.join(RESULTS).join(block.id).with_extension("csv");
        std::fs::write(results, table.csv()).expect("written");
    }
    let page = std::fs::read_to_string(root.join("BENCHMARKS.md")).expect("BENCHMARKS.md");
    let file = to.join("BENCHMARKS.md");
    std::fs::write(&file, filled(&page, blocks)).expect("written");
    println!("written: {}", file.display());
}

/// Returns a page with the contents of its places.
fn filled(page: &str, blocks: &[Block]) -> String {
    let mut parts = page.split("<!-- measured: ");
    let mut out = parts.next().unwrap_or_default().to_owned();
    out.extend(parts.map(|part| {
        let (id, rest) = part.split_once(" -->").expect("the id of a place");
        let (_, after) = rest.split_once("<!-- end -->").expect("the end of a place");
        let block = blocks.iter().find(|block| block.id == id);
        let block = block.unwrap_or_else(|| panic!("nothing is measured for `{id}`"));
        let text = match &block.body {
            Body::Markdown(text) => text.clone(),
            Body::Table(table) => table.markdown(DIGITS),
        };
        let lines: Vec<String> = text.trim().lines().map(wrapped).collect();
        let text = lines.join("\n");
        format!("<!-- measured: {id} -->\n\n{text}\n\n<!-- end -->{after}")
    }));
    out
}

/// Breaks a line of words before it has more than 120 characters. A row of a table stays as it is.
fn wrapped(line: &str) -> String {
    if line.starts_with('|') {
        return line.to_owned();
    }
    let (mut out, mut length) = (String::new(), 0);
    for word in line.split(' ') {
        let (space, more) = (if length == 0 { "" } else { " " }, word.chars().count());
        let breaks = length > 0 && length + 1 + more > 120;
        out.push_str(if breaks { "\n" } else { space });
        out.push_str(word);
        length = if breaks { more } else { length + space.len() + more };
    }
    out
}
