//! The files of `lua/`: each names the files that it uses, and uses no other name than theirs, its own and those of
//! Redis. `ratelimit-runtime/src/store/redis/scripts/program.rs` explains how files become scripts.

#![forbid(unsafe_code)]

mod lua;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use support::sources;

use self::lua::Names;

/// The names that Redis defines. `unpack` is missing: in the scripts, it is the one of `struct`.
const BUILT_IN: [&str; 13] = [
    "_G", "error", "ipairs", "math", "next", "pcall", "redis", "string", "struct", "table",
    "tonumber", "type", "KEYS",
];

/// The names that the runtime defines before these files.
const RUNTIME: [&str; 3] = ["algorithm", "LAYOUT", "NAMES"];
const AFTER_THE_RUNTIME: [&str; 2] = ["one", "by_hand"];

/// The file that `by_hand.lua` includes into a function. The two share no names.
const APART: &str = "one";

struct File {
    includes: Vec<String>,
    inlines: Vec<String>,
    names: Names,
}

fn files() -> BTreeMap<String, File> {
    let paths = sources::files(&sources::root().join("lua"), &["lua"]).into_iter();
    let texts = paths.map(|path| {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        (name, fs::read_to_string(&path).expect("a text"))
    });
    let texts: BTreeMap<String, String> = texts.collect();
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
                "include" => includes.extend(named.split(", ").map(str::to_owned)),
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

fn arguments_of(function: &str, texts: &BTreeMap<String, String>) -> String {
    let text = texts.get(function).unwrap_or_else(|| panic!("lua/{function}.lua is missing"));
    let definition = text.split_once(&format!("\nlocal function {function}("));
    let (_, rest) = definition.unwrap_or_else(|| panic!("lua/{function}.lua has no `{function}`"));
    rest.split_once(')').expect("the end of the arguments").0.to_owned()
}

#[test]
fn a_file_uses_only_its_own_names_and_those_of_its_includes() {
    let files = files();
    let included: BTreeSet<&String> = files.values().flat_map(File::uses).collect();
    for (name, file) in &files {
        let exports = |include: &String| files[include].names.exported.iter();
        let mut known: BTreeSet<&str> = BUILT_IN.into();
        if AFTER_THE_RUNTIME.contains(&&**name) {
            known.extend(RUNTIME);
        }
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
    }
}

#[test]
fn no_files_include_each_other_and_each_name_of_a_script_has_one_definition() {
    let files = files();
    let mut left: BTreeSet<&String> = files.keys().collect();
    let is_used = |file: &File, by: &BTreeSet<&String>| file.uses().any(|used| by.contains(&used));
    while let Some(name) = left.iter().copied().find(|name| !is_used(&files[*name], &left)) {
        left.remove(&name);
    }
    assert!(left.is_empty(), "the files {left:?} include each other");
    // Any of these files can be in one script.
    let parts: BTreeSet<&String> =
        files.values().flat_map(File::uses).filter(|used| *used != APART).collect();
    for (name, file) in files.iter().filter(|(_, file)| !file.uses().any(|used| used == APART)) {
        for part in parts.iter().copied().filter(|part| *part != name) {
            let names: Vec<_> =
                file.names.exported.intersection(&files[part].names.exported).collect();
            assert!(names.is_empty(), "lua/{name}.lua and lua/{part}.lua define {names:?}");
        }
    }
}

#[test]
fn an_inlined_function_finds_no_name_of_its_surroundings() {
    let files = files();
    for (name, file) in &files {
        for inline in &file.inlines {
            let mut names = file.names.declared.intersection(&files[inline].names.free);
            assert_eq!(names.next(), None, "lua/{name}.lua declares it, and {inline} uses it");
        }
    }
}
