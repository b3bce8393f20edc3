//! The structure of the project: rooms of the runtime import only rooms below them, and files of a folder are in no
//! circle; a type name exists once, the lists of algorithms that no compiler checks are whole, no line is long, and no
//! room is heavier than `weights.txt` says.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use support::sources::{files, root};

/// The files that list all algorithms, and how they name one: `{word}` is its word, `{variant}` its variant.
const LISTS_OF_ALGORITHMS: [(&str, &str); 15] = [
    ("ratelimit-runtime/src/limit/mod.rs", "pub const fn {word}("),
    ("docs/algorithms.md", "`\"{word}\"`"),
    ("docs/algorithms.md", "[picture: {word}]"),
    ("README.md", "| `\"{word}\"`"),
    ("tests/shapes/algorithms.rs", "algo = \"{word}\""),
    ("tests/allocations.rs", "Limit::{word}("),
    ("fuzz/targets/keys.rs", "=> Algorithm::{variant},"),
    ("fuzz/targets/replies.rs", "=> Algorithm::{variant},"),
    ("examples/quickstart.rs", "Limit::{word}("),
    ("examples/playground/settings.rs", "\n    Algorithm::{variant},"),
    ("examples/pictures/lane.rs", "Limit::{word}("),
    ("examples/playground/page/app.js", "\n  {word}: ["),
    ("docs/redis.md", "~rl:{word}:*"),
    ("ratelimit-cli/src/doctor/rights.rs", "\"{word}\""),
    ("benches/all/scripts.rs", "(Algorithm::{variant}, "),
];

/// The folders that are weighed as a whole: their paths, the extension of their files, and how a comment begins.
const WEIGHED: [(&str, &str, &str); 5] = [
    ("lua", "lua", "--"),
    ("ratelimit-macros/src", "rs", "//"),
    ("tests", "rs", "//"),
    ("models", "rs", "//"),
    ("benches", "rs", "//"),
];

fn sources() -> PathBuf {
    root().join("ratelimit-runtime/src")
}

/// The code of each file of the runtime by its path, without comments.
fn code() -> BTreeMap<String, String> {
    let sources = sources();
    let code = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a source file");
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let name = path.strip_prefix(&sources).expect("inside").to_string_lossy().into_owned();
        (name, lines.collect::<Vec<_>>().join("\n"))
    };
    files(&sources, &["rs"]).into_iter().map(code).collect()
}

/// Returns the rooms, from the floor up: the first column of a table.
fn rooms() -> Vec<String> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("a document");
    let table = text.lines().skip_while(|line| !line.starts_with("| room |"));
    let rows = table.take_while(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

fn words_after<'a>(code: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    code.match_indices(prefix).map(move |(at, _)| {
        let rest = &code[at + prefix.len()..];
        let end = rest.find(|byte: char| !byte.is_alphanumeric() && byte != '_');
        &rest[..end.unwrap_or(rest.len())]
    })
}

#[test]
fn rooms_import_only_rooms_below_them() {
    let (rooms, mut imports) = (rooms(), 0);
    let floor = |room: &str| rooms.iter().position(|known| known == room);
    for (file, code) in code().into_iter().filter(|(file, _)| file != "lib.rs") {
        let own = floor(file.split(['/', '.']).next().expect("a path"));
        let own =
            own.unwrap_or_else(|| panic!("`{file}` is in no room: add it to ARCHITECTURE.md"));
        for import in words_after(&code, "crate::").filter_map(floor) {
            imports += 1;
            assert!(import <= own, "{file} imports {}", rooms[import]);
        }
    }
    assert!(imports > 200, "{imports} imports were found");
}

#[test]
fn files_of_a_folder_import_each_other_in_one_direction() {
    let code_of = code();
    let mut imports: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (file, code) in &code_of {
        let path = file.strip_suffix(".rs").expect("a source file");
        let own = path.strip_suffix("/mod").unwrap_or(path);
        let siblings = words_after(code, "super::")
            .map(|name| Path::new(own).with_file_name(name).to_string_lossy().into_owned());
        let is_file = |name: &String| {
            name != own
                && ["", "/mod"].iter().any(|end| code_of.contains_key(&format!("{name}{end}.rs")))
        };
        imports.insert(own.to_owned(), siblings.filter(is_file).collect());
    }
    assert!(imports.values().flatten().count() > 60, "{imports:?}");
    // What imports nothing that is left is in no circle.
    for _ in 0..imports.len() {
        let left: Vec<_> = imports.keys().cloned().collect();
        imports.retain(|_, names| names.iter().any(|name| left.contains(name)));
    }
    assert_eq!(imports, BTreeMap::new(), "circles, and what leads into them");
}

#[test]
fn a_type_name_exists_once() {
    let mut definitions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (file, code) in code() {
        // They take the place of another file in builds without a feature, and define the same names.
        let twins = ["report/unmeasured.rs", "store/redis/network/no_tls.rs", "store/unshared.rs"];
        if twins.contains(&&*file) {
            continue;
        }
        let types = ["\ntype ", "\npub(crate) type ", "\npub(super) type "];
        let kinds = ["struct ", "enum ", "trait "].into_iter().chain(types);
        let names = kinds.flat_map(|kind| words_after(&code, kind));
        for name in names.filter(|name| name.starts_with(char::is_uppercase)) {
            definitions.entry(name.to_owned()).or_default().push(file.clone());
        }
    }
    assert!(definitions.len() > 100, "{} types were found", definitions.len());
    definitions.retain(|_, files| files.len() > 1);
    assert_eq!(definitions, BTreeMap::new());
}

/// Tables, links and commands stay in one line.
#[test]
fn no_line_is_long() {
    let (root, mut long) = (root(), Vec::new());
    let found = files(&root, &["lua", "md", "rs", "sh", "toml"]);
    assert!(found.len() > 300, "{} files were found", found.len());
    for path in found {
        let name = path.strip_prefix(&root).expect("inside").to_string_lossy().into_owned();
        // A program writes it.
        if name.ends_with("/pictures/inline.md") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a text");
        for (index, line) in text.lines().enumerate() {
            let text = line.trim_start();
            let comment = text.strip_prefix("///").or_else(|| text.strip_prefix("//!"));
            let text = comment.unwrap_or(text).trim_start();
            let stays = ["|", "![", "ACL SETUSER "].iter().any(|start| text.starts_with(start));
            if line.chars().count() > 120 && !stays && !text.contains("://") {
                long.push(format!("{name}:{}", index + 1));
            }
        }
    }
    assert_eq!(long, [""; 0]);
}

#[test]
fn hand_kept_lists_have_every_algorithm() {
    for (file, pattern) in LISTS_OF_ALGORITHMS {
        let text = fs::read_to_string(root().join(file)).expect("a file");
        for algorithm in support::ALGORITHMS {
            let entry = pattern.replace("{word}", algorithm.as_str());
            let entry = entry.replace("{variant}", &format!("{algorithm:?}"));
            assert!(text.contains(&entry), "{file} lacks `{entry}`");
        }
    }
}

/// Returns the number of lines of a file that are code: not blank, no comment, and not in an inline test module.
fn lines_of_code(path: &Path, comment: &str) -> usize {
    let text = fs::read_to_string(path).expect("a source file");
    let lines: Vec<_> = text.lines().map(str::trim_end).collect();
    let is_test = |at: usize| {
        let module = lines[at..].iter().find(|line| !line.starts_with("#["));
        lines[at].starts_with("#[cfg(")
            && ["(test", "(loom"].iter().any(|flag| lines[at].contains(flag))
            && module.is_some_and(|line| line.contains("mod ") && line.ends_with('{'))
    };
    let end = (0..lines.len()).find(|at| is_test(*at)).unwrap_or(lines.len());
    let is_code = |line: &&&str| !line.is_empty() && !line.trim_start().starts_with(comment);
    lines[..end].iter().filter(is_code).count()
}

/// Returns the lines of code of each room, of the stores apart, and of [`WEIGHED`].
fn weights() -> BTreeMap<String, usize> {
    let (folder, mut weights) = (sources(), BTreeMap::new());
    for path in files(&folder, &["rs"]) {
        let parts: Vec<_> = path.strip_prefix(&folder).expect("inside").iter().collect();
        let parts: Vec<_> = parts.iter().map(|part| part.to_string_lossy()).collect();
        let tests = ["tests.rs", "interleavings.rs", "reserving.rs", "settling.rs"];
        if tests.contains(&&**parts.last().expect("a name")) {
            continue;
        }
        let room = match &parts[..] {
            [_] => "(files)".to_owned(),
            [room, store, _, ..] if *room == "store" => format!("store/{store}"),
            [room, ..] => room.to_string(),
            [] => continue,
        };
        *weights.entry(room).or_insert(0) += lines_of_code(&path, "//");
    }
    for (folder, extension, comment) in WEIGHED {
        let files = files(&root().join(folder), &[extension]);
        let lines = files.iter().map(|path| lines_of_code(path, comment)).sum();
        weights.insert(folder.to_owned(), lines);
    }
    weights
}

/// `WEIGHTS=write cargo test -p tests --test house` writes the file. A commit that makes a room heavier shows it there.
#[test]
fn no_room_is_heavier_than_the_list_says() {
    let (path, weights) = (root().join("tests/weights.txt"), weights());
    let lines: Vec<_> = weights.iter().map(|(room, lines)| format!("{room} {lines}\n")).collect();
    let listed = lines.concat();
    if std::env::var_os("WEIGHTS").is_some() {
        fs::write(&path, listed).expect("written");
        return;
    }
    let text = fs::read_to_string(path).expect("the weights");
    let known = text.lines().map(|line| {
        let (room, lines) = line.rsplit_once(' ').expect("a room and its lines");
        (room.to_owned(), lines.parse::<usize>().expect("a number"))
    });
    let known: BTreeMap<_, _> = known.collect();
    assert!(known.keys().eq(weights.keys()), "the rooms are:\n{listed}");
    for (room, lines) in &weights {
        let most = known[room];
        // A room can be a few lines lighter.
        let fits = (most.saturating_sub(20)..=most).contains(lines);
        assert!(fits, "{room} has {lines} lines of code, and weights.txt says {most}");
    }
}
