//! Compares expansions with those in `snapshots/`: `x.rs` expands to `x.expanded.rs`.
//!
//! After a change of the expansion, `SNAPSHOTS=overwrite cargo test -p ratelimit-macros` rewrites
//! them. Read the difference before you commit it.

use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::{Attribute, File, ImplItem, Item, Meta, TraitItem};

/// Expands every annotated function of a file.
fn expand_file(source: &str) -> String {
    let file: File = syn::parse_file(source).expect("a file of functions");
    let items = file.items.into_iter().map(|item| match item {
        Item::Fn(mut it) => Item::Verbatim(expand_one(it.attrs.remove(0), &it)),
        Item::Impl(mut block) => {
            block.items.iter_mut().for_each(|item| {
                if let ImplItem::Fn(it) = item {
                    *item = ImplItem::Verbatim(expand_one(it.attrs.remove(0), it));
                }
            });
            Item::Impl(block)
        }
        Item::Trait(mut block) => {
            block.items.iter_mut().for_each(|item| {
                if let TraitItem::Fn(it) = item {
                    *item = TraitItem::Verbatim(expand_one(it.attrs.remove(0), it));
                }
            });
            Item::Trait(block)
        }
        other => other,
    });
    let items: TokenStream = items.map(Item::into_token_stream).collect();
    broken(&prettyplease::unparse(&syn::parse2(items).expect("the expansion parses")))
}

/// Breaks long lines after their `=`: `prettyplease` keeps the type and the constructor of a `static` on one line.
fn broken(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let indent = &line[..line.len() - line.trim_start().len()];
        match line.split_once(" = ") {
            Some((left, right)) if line.len() > 120 => {
                format!("{left} =\n{indent}    {right}\n")
            }
            _ => format!("{line}\n"),
        }
    });
    lines.collect()
}

/// Expands an attribute on a function that no longer has it.
fn expand_one(attribute: Attribute, function: &impl ToTokens) -> TokenStream {
    let Meta::List(attribute) = attribute.meta else {
        panic!("`#[rate_limit(…)]` is the first attribute")
    };
    crate::rewrite::rewrite(&attribute.tokens, &function.to_token_stream())
}

#[test]
fn expands_to_the_snapshots() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("snapshots");
    let names = fs::read_dir(&folder).expect("the folder of snapshots");
    let names: Vec<PathBuf> = names.map(|entry| entry.expect("an entry").path()).collect();
    let is_expanded = |path: &Path| path.to_string_lossy().ends_with(".expanded.rs");
    let mut compared = 0;
    for path in names.iter().filter(|path| !is_expanded(path)) {
        let now = expand_file(&fs::read_to_string(path).expect("a snapshot"));
        let kept = path.with_extension("expanded.rs");
        if std::env::var_os("SNAPSHOTS").is_some_and(|mode| mode == "overwrite") {
            fs::write(&kept, &now).expect("written");
        }
        let kept = fs::read_to_string(&kept).unwrap_or_default();
        assert!(now == kept, "{} expands to\n\n{now}", path.display());
        compared += 1;
    }
    assert!(compared >= 5, "only {compared} snapshots");
}
