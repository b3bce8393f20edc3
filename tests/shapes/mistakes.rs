//! Wrong arguments of the attribute, with the place and the message of each error. What the compiler reports, and
//! mistakes in functions, are in `tests/attribute`.
//!
//! Each block of `mistakes.txt` has the arguments, after the function if they depend on it, and the errors. To add a
//! mistake, or after a change of a message, `SNAPSHOTS=overwrite tests/run --test shapes mistakes` writes the errors
//! anew. Read the difference before you commit it.

use std::fs;

const MISTAKES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/shapes/mistakes.txt");

/// The function of arguments that do not depend on one.
const FUNCTION: &str =
    "async fn call(id: u8, user_id: u8, user: User, prompt: String, times: Vec<u8>)";

/// Returns a block of the file with the errors that are reported now.
fn reported(block: &str) -> String {
    let is_given = |line: &&str| !line.starts_with([' ', '^']);
    let mut lines: Vec<_> = block.lines().filter(is_given).map(str::to_owned).collect();
    let arguments = lines.last().expect("arguments").clone();
    let function = lines.iter().find(|line| line.starts_with("async fn "));
    let function = format!("{} {{ None }}", function.map_or(FUNCTION, String::as_str));
    let errors = expander::errors(&arguments, &function).expect("tokens");
    assert!(!errors.is_empty(), "no mistake: {arguments}");
    lines.extend(errors.into_iter().map(|(columns, message)| {
        let (before, place) = (" ".repeat(columns.start), "^".repeat(columns.len()));
        format!("{before}{place} {message}")
    }));
    lines.join("\n")
}

#[test]
fn each_mistake_is_reported_at_its_place() {
    let kept = fs::read_to_string(MISTAKES).expect("the mistakes");
    let blocks: Vec<_> = kept.trim_end().split("\n\n").collect();
    assert!(blocks.len() > 200, "only {} mistakes", blocks.len());
    let shown: Vec<_> = blocks.iter().map(|block| reported(block)).collect();
    if std::env::var_os("SNAPSHOTS").is_some_and(|mode| mode == "overwrite") {
        fs::write(MISTAKES, shown.join("\n\n") + "\n").expect("written");
        return;
    }
    for (shown, kept) in shown.iter().zip(blocks) {
        assert!(shown == kept, "this is reported:\n\n{shown}\n\nand not this:\n\n{kept}");
    }
}
