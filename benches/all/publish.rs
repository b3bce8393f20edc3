//! Writes the measurements into their places in `BENCHMARKS.md`, and draws its charts.
//!
//! A place is between `<!-- measured: id -->` and `<!-- end -->`. All other text is written by hand, and contains
//! no figures.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::chart;
use crate::figure::figure;
use crate::goals;
use crate::table::{Block, Body, Kind, Table};

const CHARTS: &str = "benches/charts";

pub(crate) fn publish(blocks: &[Block], quick: bool) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let to =
        if quick { PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("quick") } else { root.clone() };
    std::fs::create_dir_all(to.join(CHARTS)).expect("a folder");
    let mut text = std::fs::read_to_string(root.join("BENCHMARKS.md")).expect("BENCHMARKS.md");
    put(&mut text, "glance", &at_a_glance(blocks));
    put(&mut text, "goals", &goals::reached(blocks, quick));
    for block in blocks {
        let mut body = block.text();
        if let Body::Table(table) = &block.body
            && let Some(axis) = table.chart
        {
            let chart = format!("{CHARTS}/{}.svg", block.id);
            std::fs::write(to.join(&chart), chart::lines(table, axis)).expect("written");
            body = format!("![{}, {}]({chart})\n\n{body}", table.title, table.unit);
        }
        put(&mut text, block.id, &body);
    }
    let file = to.join("BENCHMARKS.md");
    std::fs::write(&file, text).expect("written");
    println!("written: {}", file.display());
}

fn put(text: &mut String, id: &str, body: &str) {
    let begin = format!("<!-- measured: {id} -->\n");
    let place = text.find(&begin).map(|at| at + begin.len());
    let from = place.unwrap_or_else(|| panic!("BENCHMARKS.md has no place for `{id}`"));
    let length = text[from..].find("<!-- end -->").expect("the end of a place");
    let lines: Vec<String> = body.trim().lines().map(wrapped).collect();
    text.replace_range(from..from + length, &format!("\n{}\n\n", lines.join("\n")));
}

/// Breaks a line of words before it has more than 120 characters. A row of a table and a picture stay as they are.
fn wrapped(line: &str) -> String {
    if line.starts_with(['|', '!']) {
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

/// Compares the figures of this library with the best of the others, the greatest loss first.
fn at_a_glance(blocks: &[Block]) -> String {
    let mut lines: Vec<(f64, String)> = blocks
        .iter()
        .filter_map(|block| match &block.body {
            Body::Table(table) => glance(table),
            Body::Markdown(_) => None,
        })
        .collect();
    lines.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut out = String::from("| what | at worst | at best |\n| --- | --- | --- |");
    for (_, line) in lines {
        write!(out, "\n{line}").expect("text");
    }
    out
}

/// Returns the worst and the best figure of this library.
fn glance(table: &Table) -> Option<(f64, String)> {
    let mut gains: Vec<(f64, String)> = Vec::new();
    for row in &table.rows {
        let others = table.figures(row, |kind| kind == Kind::Peer);
        let best =
            others.reduce(
                |one, other| {
                    if table.better.gain(one.1, other.1) >= 1.0 { one } else { other }
                },
            );
        let Some((peer, theirs)) = best else { continue };
        for (column, ours) in table.figures(row, |kind| kind == Kind::Ours) {
            let gain = table.better.gain(ours, theirs);
            let who = column.name.strip_prefix("ours").unwrap_or_default();
            let by = if row.at.is_some() { format!("{} ", table.by) } else { String::new() };
            let bold = if gain < 0.995 { "**" } else { "" };
            let times = figure(gain);
            let text = format!("{bold}{times}{bold} × {}: {by}{}{who}", peer.name, row.label);
            gains.push((gain, text));
        }
    }
    gains.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (worst, best) = (gains.first()?, gains.last()?);
    Some((worst.0, format!("| {} | {} | {} |", table.title, worst.1, best.1)))
}
