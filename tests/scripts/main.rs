//! The files of `lua/`: each names the files that it uses, and uses no other name than theirs, its own and those of
//! Redis. `ratelimit-runtime/src/store/redis/scripts/compose.rs` explains how files become scripts.

#![forbid(unsafe_code)]

mod lua;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use ratelimit_runtime::__private::script_text;

use self::lua::Names;

/// The names that Redis defines. `unpack` is missing: in the scripts, it is the one of `struct`.
const BUILT_IN: [&str; 13] = [
    "_G", "error", "ipairs", "math", "next", "pcall", "redis", "string", "struct", "table",
    "tonumber", "type", "KEYS",
];

/// The names that the runtime writes into a file, and the files of the algorithms.
const RUNTIME: &str = "RUNTIME";
const ALGORITHMS: [&str; 4] = ["sliding", "fixed", "sliding_counter", "bucket"];

/// The file that `by_hand.lua` includes into a function. The two share no names.
const APART: &str = "one";

/// The scripts that the runtime composes.
const SCRIPTS: [&str; 9] = [
    "sliding",
    "fixed",
    "sliding_counter",
    "bucket",
    "leased_bucket",
    "all",
    "batch",
    "batch_of_node",
    "correct",
];

/// A file of `lua/`.
struct File {
    includes: Vec<String>,
    inlines: Vec<String>,
    names: Names,
}

/// Returns the files by their names.
fn files() -> BTreeMap<String, File> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lua");
    let texts: BTreeMap<String, String> = fs::read_dir(folder)
        .expect("the folder of the scripts")
        .map(|entry| entry.expect("an entry").path())
        .map(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            (name, fs::read_to_string(&path).expect("a text"))
        })
        .collect();
    assert!(texts.len() > 20, "{} files were found", texts.len());
    texts.iter().map(|(name, text)| (name.clone(), File::parse(name, text, &texts))).collect()
}

impl File {
    fn parse(name: &str, text: &str, texts: &BTreeMap<String, String>) -> Self {
        let (mut includes, mut inlines, mut code) = (Vec::new(), Vec::new(), String::new());
        for line in text.lines() {
            let Some(directive) = line.trim_start().strip_prefix("--@") else {
                code.extend([line, "\n"]);
                continue;
            };
            let (word, named) = directive.split_once(' ').unwrap_or((directive, ""));
            match word {
                "include" => includes.extend(named.split(", ").flat_map(files_of)),
                "inline" => {
                    // The arguments of the function are used here.
                    code.extend(["_G(", &arguments_of(named, texts), ")\n"]);
                    inlines.push(named.to_owned());
                }
                _ => panic!("lua/{name}.lua: `--@{directive}` is no directive"),
            }
        }
        for used in includes.iter().chain(&inlines) {
            assert!(texts.contains_key(used), "lua/{name}.lua includes `{used}`, which is missing");
        }
        Self { includes, inlines, names: Names::of(&code) }
    }

    /// Returns the files that are in a script because of this one.
    fn uses(&self) -> impl Iterator<Item = &String> {
        self.includes.iter().chain(&self.inlines)
    }
}

/// Returns the files that a word of an `--@include` names.
fn files_of(word: &str) -> Vec<String> {
    if word.starts_with(RUNTIME) {
        return ALGORITHMS.map(str::to_owned).to_vec();
    }
    vec![word.to_owned()]
}

fn arguments_of(function: &str, texts: &BTreeMap<String, String>) -> String {
    let text = texts.get(function).unwrap_or_else(|| panic!("lua/{function}.lua is missing"));
    let definition = text.split_once(&format!("\nlocal function {function}("));
    let (_, rest) = definition.unwrap_or_else(|| panic!("lua/{function}.lua has no `{function}`"));
    rest.split_once(')').expect("the end of the arguments").0.to_owned()
}

/// Adds the file and all files that it uses to `found`. `path` has the files that use it.
fn collect<'a>(
    name: &'a str,
    files: &'a BTreeMap<String, File>,
    path: &mut Vec<&'a str>,
    found: &mut BTreeSet<&'a str>,
) {
    assert!(!path.contains(&name), "lua/{name}.lua includes itself: {path:?}");
    path.push(name);
    found.insert(name);
    for used in files[name].uses().filter(|used| *used != APART) {
        collect(used, files, path, found);
    }
    path.pop();
}

#[test]
fn a_file_uses_only_its_own_names_and_those_of_its_includes() {
    let files = files();
    let included: BTreeSet<&String> = files.values().flat_map(File::uses).collect();
    for (name, file) in &files {
        let exports = |include: &String| files[include].names.exported.iter();
        let mut known: BTreeSet<&str> = BUILT_IN.into();
        known.extend([RUNTIME]);
        // The keys and arguments of an included file are those of `prelude.lua`, which `batch.lua` changes.
        if !included.contains(name) || name == "prelude" {
            known.insert("ARGV");
        } else {
            known.remove("KEYS");
        }
        known.extend(file.includes.iter().flat_map(exports).map(|name| &**name));
        let unknown: Vec<_> =
            file.names.free.iter().filter(|name| !known.contains(&***name)).collect();
        assert!(unknown.is_empty(), "lua/{name}.lua uses {unknown:?}, which it does not include");
        for include in &file.includes {
            if ALGORITHMS.contains(&&**include) || include == APART {
                continue;
            }
            let is_used = exports(include).any(|export| file.names.free.contains(export));
            assert!(is_used, "lua/{name}.lua includes `{include}` and uses nothing of it");
        }
    }
}

#[test]
fn no_file_includes_itself_and_each_name_of_a_script_has_one_definition() {
    let files = files();
    for name in files.keys() {
        let mut found = BTreeSet::new();
        collect(name, &files, &mut Vec::new(), &mut found);
        let mut definitions: BTreeMap<&String, Vec<&str>> = BTreeMap::new();
        for part in found {
            for export in &files[part].names.exported {
                definitions.entry(export).or_default().push(part);
            }
        }
        definitions.retain(|_, parts| parts.len() > 1);
        assert!(definitions.is_empty(), "lua/{name}.lua: {definitions:?}");
    }
}

#[test]
fn an_inlined_function_finds_no_name_of_its_surroundings() {
    let files = files();
    for (name, file) in &files {
        for inline in &file.inlines {
            let names = file.names.declared.intersection(&files[inline].names.free);
            let names: Vec<_> = names.collect();
            assert!(names.is_empty(), "lua/{name}.lua declares {names:?}, which {inline} uses");
        }
    }
}

#[test]
fn a_composed_script_has_no_undeclared_name() {
    for script in SCRIPTS {
        let text = script_text(script).expect(script);
        let free = Names::of(&text).free;
        let unknown: Vec<_> =
            free.iter().filter(|name| *name != "ARGV" && !BUILT_IN.contains(&&***name)).collect();
        assert!(unknown.is_empty(), "{script}: {unknown:?}");
    }
}
