//! Wrong arguments of the attribute, and wrong items below it, with the place and the message of each error. What the
//! compiler reports is in `tests/attribute`.
//!
//! Each block of `mistakes.txt` has the arguments, after the item if the errors depend on it, and the errors. To add a
//! mistake, or after a change of a message, `SNAPSHOTS=overwrite tests/run --test shapes mistakes` writes the errors
//! anew. Read the difference before you commit it.

use std::fs;

const MISTAKES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/shapes/mistakes.txt");

/// The function of arguments that do not depend on one.
const FUNCTION: &str =
    "async fn call(id: u8, user_id: u8, user: User, prompt: String, times: Vec<u8>)";

/// Returns a block of the file with the errors that are reported now.
fn reported(block: &str) -> String {
    let mut lines: Vec<_> = block.lines().filter(|line| !line.starts_with([' ', '^'])).collect();
    let arguments = lines.pop().expect("arguments");
    let item = lines.pop_if(|line| !line.starts_with("# "));
    let mut function = item.unwrap_or(FUNCTION).to_owned();
    if !function.ends_with(['}', ';']) {
        function += " { None }";
    }
    let errors = expander::errors(arguments, &function).expect("tokens");
    assert!(!errors.is_empty(), "no mistake: {arguments}");
    // The item stays, so that what uses it compiles.
    let without_spaces = |text: &str| text.split_whitespace().collect::<String>();
    let output = without_spaces(&expander::expand(arguments, &function).expect("tokens"));
    assert!(output.starts_with(&without_spaces(&function)), "{output}");
    let mut shown: Vec<_> = lines.into_iter().map(str::to_owned).collect();
    for (line, is_item) in item.map(|item| (item, true)).into_iter().chain([(arguments, false)]) {
        shown.push(line.to_owned());
        for (_, columns, message) in errors.iter().filter(|error| error.0 == is_item) {
            let (before, place) = (" ".repeat(columns.start), "^".repeat(columns.len()));
            shown.push(format!("{before}{place} {message}"));
        }
    }
    shown.join("\n")
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
