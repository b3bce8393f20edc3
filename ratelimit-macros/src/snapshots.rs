//! What the attribute writes, for a person to read: `snapshots/x.rs` becomes `snapshots/x.expanded.rs`.
//!
//! After a change of the expansion, `SNAPSHOTS=overwrite cargo test -p ratelimit-macros` writes them
//! anew. Read every one of them.

use std::fs;
use std::path::{Path, PathBuf};

use quote::ToTokens;
use syn::{File, Item, Meta};

/// The file with every annotated function rewritten.
fn expanded(source: &str) -> String {
    let file: File = syn::parse_file(source).expect("a file of functions");
    let items = file.items.into_iter().map(|item| {
        let Item::Fn(mut function) = item else { return item.into_token_stream() };
        let Meta::List(attribute) = function.attrs.remove(0).meta else {
            panic!("`#[rate_limit(…)]` stands first on `{}`", function.sig.ident)
        };
        crate::rewrite(attribute.tokens, &function.into_token_stream())
    });
    let file = syn::parse2(items.collect()).expect("the expansion parses");
    prettyplease::unparse(&file)
}

#[test]
fn expansions_read_as_before() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("snapshots");
    let names = fs::read_dir(&folder).expect("the folder of snapshots");
    let names: Vec<PathBuf> = names.map(|entry| entry.expect("an entry").path()).collect();
    let is_expanded = |path: &Path| path.to_string_lossy().ends_with(".expanded.rs");
    let mut seen = 0;
    for path in names.iter().filter(|path| !is_expanded(path)) {
        let now = expanded(&fs::read_to_string(path).expect("a snapshot"));
        let kept = path.with_extension("expanded.rs");
        if std::env::var_os("SNAPSHOTS").is_some_and(|wish| wish == "overwrite") {
            fs::write(&kept, &now).expect("written");
        }
        let kept = fs::read_to_string(&kept).unwrap_or_default();
        assert!(now == kept, "{} expands to\n\n{now}", path.display());
        seen += 1;
    }
    assert!(seen >= 5, "only {seen} snapshots");
}
