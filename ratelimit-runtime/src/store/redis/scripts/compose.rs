//! Composes scripts from the files of `lua/`. A line of a file can be a directive:
//!
//! - `--@include x, y`: the texts of `lua/x.lua` and `lua/y.lua` stand here, unless they stand in the script already.
//!   The file can then use their names.
//! - `--@inline x`: the body of the function `x`, the last of `lua/x.lua`, stands here. Variables with the names of its
//!   arguments are in scope. Saves the time to create and to call the function.
//!
//! A word such as `RUNTIME.layout` stands for a text of the runtime, also in a directive. The scripts contain no
//! comments: a server that does not know a script receives and compiles less.
//!
//! `tests/scripts/` checks the names and the directives of all files.

/// Lists files of `lua/` by their names.
macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../../lua/", $name, ".lua")))),*]
    };
}

/// The name and the text of each file.
const FILES: &[(&str, &str)] = files![
    "all",
    "answer",
    "batch",
    "bucket",
    "by_hand",
    "correct",
    "each",
    "fixed",
    "hold",
    "least_levels",
    "one",
    "prelude",
    "several",
    "sliding",
    "sliding_counter",
    "slots",
    "usual",
    "write_state",
];

/// Returns the text of a file; empty if there is none.
pub(crate) fn text_of(name: &str) -> &'static str {
    FILES.iter().find(|(known, _)| *known == name).map_or("", |(_, text)| text)
}

/// Composes a script from its main file. `value` returns the text that a word stands for, without `RUNTIME.`.
pub(crate) fn compose(main: &str, value: &dyn Fn(&str) -> Option<String>) -> String {
    let mut script = Composition { value, included: Vec::new(), text: String::new() };
    script.include(main);
    script.text
}

/// Returns a script that is one file, without its comments.
#[cfg(feature = "rules")]
pub(crate) fn without_comments(text: &str) -> String {
    text.lines().filter(|line| is_code(line)).flat_map(|line| [line, "\n"]).collect()
}

fn is_code(line: &str) -> bool {
    let code = line.trim_start();
    !code.is_empty() && !code.starts_with("--")
}

struct Composition<'a> {
    value: &'a dyn Fn(&str) -> Option<String>,
    included: Vec<String>,
    text: String,
}

impl Composition<'_> {
    fn include(&mut self, name: &str) {
        if !self.included.iter().any(|known| known == name) {
            self.included.push(name.to_owned());
            self.add(text_of(name));
        }
    }

    fn inline(&mut self, name: &str) {
        let function = format!("\nlocal function {name}(");
        let Some((before, function)) = text_of(name).split_once(&function) else { return };
        self.add(before);
        let body = function.split_once(")\n").and_then(|(_, body)| body.strip_suffix("end\n"));
        self.add(body.unwrap_or_default());
    }

    fn add(&mut self, text: &str) {
        for line in text.lines() {
            let code = line.trim_start();
            if let Some(names) = code.strip_prefix("--@include ") {
                self.with_values(names).split(", ").for_each(|name| self.include(name));
            } else if let Some(name) = code.strip_prefix("--@inline ") {
                self.inline(name);
            } else if is_code(line) {
                let line = self.with_values(line);
                self.text.push_str(&line);
                self.text.push('\n');
            }
        }
    }

    /// Replaces the words of the runtime. A word that is not known stays as it is.
    fn with_values(&self, line: &str) -> String {
        let mut parts = line.split("RUNTIME.");
        let mut replaced = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part.find(|byte: char| !byte.is_ascii_lowercase() && byte != '_');
            let (word, rest) = part.split_at(end.unwrap_or(part.len()));
            match (self.value)(word) {
                Some(value) => replaced.push_str(&value),
                None => replaced.extend(["RUNTIME.", word]),
            }
            replaced.push_str(rest);
        }
        replaced
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Files that are scripts by themselves.
    const RULES: [&str; 6] =
        ["announce", "announced", "changes", "processes", "read_rules", "rules"];

    #[test]
    fn every_file_is_in_the_list() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
        let entries = fs::read_dir(folder).expect("the folder of the scripts");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("an entry").path())
            .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
            .filter(|name| !RULES.contains(&&**name))
            .collect();
        names.sort();
        assert_eq!(names, FILES.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }

    #[test]
    fn a_file_stands_once_in_a_script_and_before_the_files_that_include_it() {
        let script =
            compose("correct", &|word| (word == "algorithms").then(|| "bucket".to_owned()));
        let functions = ["each", "answer", "least_levels", "bucket", "ask"];
        let positions = functions.map(|function| {
            let definition = format!("local function {function}(");
            let found: Vec<_> = script.match_indices(&definition).map(|(at, _)| at).collect();
            assert_eq!(found.len(), 1, "{function}");
            found[0]
        });
        assert!(positions.is_sorted());
    }

    #[test]
    fn a_script_has_no_comments_and_no_directives() {
        let script = compose("one", &|_| Some("fixed".into()));
        assert!(script.contains("\nlocal function fixed("));
        assert!(!script.contains("--") && !script.contains("\n\n") && !script.contains("RUNTIME"));
    }
}
