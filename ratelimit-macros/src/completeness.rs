//! Compares the lists that no compiler checks with the tables of arguments and algorithms: the
//! documentation, and the dictionary and the file list of the fuzz target. Also fails for an
//! argument that is accepted and then ignored.

use std::fs;
use std::path::Path;

use proc_macro2::TokenStream;

use crate::argument::ArgumentName;
use crate::limit::Algorithm;
use crate::words::Word;

/// Reads a file of the repository; `path` is relative to this crate.
fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn expand(arguments: &str) -> String {
    let item = "async fn call(user_id: u64) -> Result<(), Rejection> { Ok(()) }";
    let item: TokenStream = item.parse().expect("an item");
    crate::rewrite::rewrite(&arguments.parse().expect("tokens"), &item).to_string()
}

/// The other arguments that an attribute with `name` needs.
fn other_arguments(name: ArgumentName) -> &'static str {
    match name {
        ArgumentName::Period => "threshold = 100,",
        ArgumentName::Threshold => "period = \"1d\",",
        ArgumentName::Burst => "period = \"1d\", threshold = 100, algo = \"token_bucket\",",
        ArgumentName::Align => "period = \"1d\", threshold = 100, algo = \"fixed\",",
        ArgumentName::CloseAtMost => "period = \"1d\", threshold = 100, close = retry_after,",
        ArgumentName::Hold => "in_flight = 2,",
        // Each describes a limit.
        ArgumentName::InFlight | ArgumentName::Limit => "",
        _ => "period = \"1d\", threshold = 100,",
    }
}

#[test]
fn every_argument_changes_the_expansion() {
    for name in ArgumentName::ALL {
        let others = other_arguments(*name);
        let with = expand(&format!("{others} {}", name.example()));
        assert!(!with.contains("compile_error"), "{name}: {with}");
        assert_ne!(with, expand(others), "`{name}` is accepted and ignored");
    }
}

#[test]
fn every_path_starts_at_the_given_runtime() {
    for name in ArgumentName::ALL.iter().filter(|name| **name != ArgumentName::Crate) {
        let others = other_arguments(*name);
        let output = expand(&format!("{others} {}, crate = acme::limits", name.example()));
        assert!(output.contains("acme"), "{output}");
        assert!(!output.contains("ratelimit_runtime"), "{name}: {output}");
    }
}

#[test]
fn every_argument_is_documented() {
    let docs = read("docs/rate_limit.md");
    for name in ArgumentName::ALL {
        assert!(docs.contains(&format!("\n| [`{name}`](#{name})")), "no row for `{name}`");
        assert!(docs.contains(&format!("\n## `{name}`\n")), "no section for `{name}`");
    }
    for algorithm in Algorithm::ALL {
        let row = format!("\n| `\"{}\"` |", algorithm.as_str());
        assert!(docs.contains(&row), "no row for `{}`", algorithm.as_str());
    }
}

#[test]
fn documented_groups_take_the_arguments_of_a_group() {
    let docs = read("docs/rate_limit.md");
    let text = docs.lines().collect::<Vec<_>>().join(" ");
    let in_groups = ArgumentName::ALL.iter().filter(|name| name.place().is_in_groups());
    let names: Vec<_> = in_groups.map(|name| format!("`{name}`")).collect();
    let (last, others) = names.split_last().expect("arguments");
    let sentence = format!("A group takes {} and {last}.", others.join(", "));
    assert!(text.contains(&sentence), "not documented: {sentence}");
}

#[test]
fn fuzz_dictionary_has_every_word() {
    let dictionary = read("../fuzz/attribute.dict");
    for name in ArgumentName::ALL {
        assert!(dictionary.contains(&format!("\"{name}")), "no `{name}`");
    }
    for algorithm in Algorithm::ALL {
        let word = format!("\"\\\"{}\\\"\"", algorithm.as_str());
        assert!(dictionary.contains(&word), "no {word}");
    }
}

#[test]
fn fuzz_target_includes_every_module() {
    let (lib, target) = (read("src/lib.rs"), read("../fuzz/targets/attribute.rs"));
    let mut lines = lib.lines().peekable();
    let mut modules = 0;
    while let Some(line) = lines.next() {
        if line == "#[cfg(test)]" {
            lines.next();
        } else if line.starts_with("mod ") {
            assert!(target.contains(&format!("\n{line}\n")), "{line} is missing");
            modules += 1;
        }
    }
    assert!(modules > 5, "only {modules} modules");
}
