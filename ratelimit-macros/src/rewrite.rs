//! The whole way from the tokens of an attribute and its function to the tokens of the limited
//! function.

use proc_macro2::TokenStream;
use quote::quote;

use crate::args::Args;
use crate::argument::ArgumentName;
use crate::diagnostics::Errors;
use crate::expand::expand;
use crate::function::Function;
use crate::guard::Guard;

pub(crate) fn rewrite(arguments: &TokenStream, item: &TokenStream) -> TokenStream {
    let errors = Errors::default();
    let args = Args::parse(arguments.clone(), &errors);
    let function = errors.record(syn::parse2::<Function>(item.clone()));
    if let Some(function) = &function {
        function.require_one_attribute(&errors);
    }
    let guard = Guard::validate(&args, function.as_ref());
    let may_block = args.get(ArgumentName::Scope).is_some();
    let function = function.and_then(|function| errors.record(function.require_async(may_block)));
    match errors.finish(function.zip(guard)) {
        Ok((function, guard)) => expand(&function, &guard, arguments),
        // The function stays, so that its callers do not fail to compile as well.
        Err(compile_errors) => quote!(#item #compile_errors),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use proc_macro2::TokenStream;
    use quote::ToTokens;
    use syn::{Attribute, File, ImplItem, Item, Meta, TraitItem};

    use crate::algorithm::Algorithm;
    use crate::argument::ArgumentName;
    use crate::words::Word;

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

    /// Compares expansions with those in `snapshots/`: `x.rs` expands to `x.expanded.rs`.
    ///
    /// After a change of the expansion, `SNAPSHOTS=overwrite cargo test -p ratelimit-macros` rewrites
    /// them. Read the difference before you commit it.
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

    /// The punctuation and the values, right and wrong, between the names of arguments.
    const OTHER_WORDS: [&str; 31] = [
        "=",
        "=",
        "=",
        ",",
        ",",
        ",",
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
        "30",
        "0",
        "-1",
        "1.5",
        "30s",
        "\"30s\"",
        "\"1h30m\"",
        "\"{id}:{user.name:>8}\"",
        "\"{\"",
        "\"}}{0}\"",
        "\"+08:00\"",
        "true",
        "|r|",
        "self",
        "id",
        "Self::MAX",
        "99999999999999999999",
        "'x'",
        "..",
    ];

    const FUNCTIONS: [&str; 6] = [
        "async fn f(id: u64) -> Option<u64> { Some(id) }",
        "async fn f(&self, Path((a, b)): Path<(u64, u64)>, user: User) -> impl Trait { }",
        "fn f() { }",
        "fn f<'a>(&'a self) -> Pin<Box<dyn Future<Output = ()> + 'a>> { Box::pin(async move { }) }",
        "async fn f();",
        "struct F;",
    ];

    /// A short version of `fuzz/targets/attribute.rs`, which runs with the other tests.
    #[test]
    fn does_not_panic_on_random_words() {
        let arguments = ArgumentName::ALL.iter().map(|name| name.as_str().to_owned());
        let algorithms =
            Algorithm::ALL.iter().map(|algorithm| format!("\"{}\"", algorithm.as_str()));
        let others = OTHER_WORDS.map(str::to_owned);
        let words: Vec<String> = arguments.chain(algorithms).chain(others).collect();

        // A linear congruential generator (Knuth's MMIX constants): the same input in every run.
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let (mut parsed, mut accepted) = (0, 0);
        for _ in 0..30_000 {
            let text: Vec<_> = (0..random(14)).map(|_| &*words[random(words.len())]).collect();
            // The compiler passes only token sequences to a macro.
            let Ok(arguments) = text.join(" ").parse::<TokenStream>() else { continue };
            let key = format!("[runtime] {arguments}").parse().expect("tokens");
            let _ = crate::key_macro::expand_key(key).to_string();
            let function = FUNCTIONS[random(FUNCTIONS.len())];
            let item: TokenStream = function.parse().expect("an item");
            let output = crate::rewrite::rewrite(&arguments, &item).to_string();
            parsed += 1;
            accepted += usize::from(!output.contains("compile_error"));
        }
        assert!(parsed > 10_000, "{parsed}");
        assert!(accepted < parsed, "every input is accepted");
    }

    #[test]
    fn does_not_panic_on_the_corpus() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/attribute");
        let mut replayed = 0;
        for entry in fs::read_dir(&folder).expect("the corpus of the fuzz target") {
            let text = fs::read(entry.expect("an entry").path()).expect("an input");
            // The fuzz target skips what is not UTF-8.
            let Ok(text) = String::from_utf8(text) else { continue };
            let (arguments, item) = text.split_once("\n---\n").unwrap_or((&text, FUNCTIONS[0]));
            if let (Ok(arguments), Ok(item)) = (arguments.parse(), item.parse::<TokenStream>()) {
                let _ = crate::rewrite::rewrite(&arguments, &item).to_string();
                replayed += 1;
            }
        }
        assert!(replayed > 50, "only {replayed} inputs");
    }
}
