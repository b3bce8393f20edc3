//! The texts of the scripts: which files of `lua/` they consist of.
//!
//! The numbers that the function of a limit in `lua/` takes have names, which the texts of the scripts contain; this
//! file packs them into the arguments that the store sends.
//!
//! A line of a file can be a directive:
//!
//! - `--@include x, y`: the texts of `lua/x.lua` and `lua/y.lua` stand here, unless they stand in the script already.
//!   The file can then use their names.
//! - `--@inline x`: the body of the function `x`, the last of `lua/x.lua`, stands here. Variables with the names of its
//!   arguments are in scope. Saves the time to create and to call the function.
//!
//! The scripts contain no comments: a server that does not know a script receives and compiles less.
//!
//! `tests/scripts/` checks the names and the directives of all files.

use std::collections::HashSet;
use std::time::SystemTime;

use crate::limit::{Algorithm, Terms};
use crate::store::{Charge, Statement};

/// The format of the operation, its cost, its birth and its operand, which precede the arguments of a form.
const CALL: &str = "si7I7I7";
const CALL_NAMES: &str = "op cost birth operand";

impl Form {
    /// Returns a script of one call: `one`, or `by_hand`, with text as its arguments and as its reply. The main file
    /// uses the function of this form, and the format and the names of the values that a call has.
    pub(crate) fn script(&self, main: &str) -> String {
        let (function, layout, mut names) = (self.function, self.layout(), CALL_NAMES.to_owned());
        for (name, _) in self.arguments {
            names.extend([" ", name]);
        }
        compose(&format!(
            "--@include {function}\n\
             local algorithm, LAYOUT, NAMES = {function}, '>{CALL}{layout}', '{names}'\n\
             --@include {main}"
        ))
    }
}

/// Returns a script of several limits, or of none, by the name of its main file.
pub(crate) fn several(name: &str) -> String {
    compose(&format!("--@include {name}"))
}

/// Returns the script that decides calls of keys in any hash slots of a node, which it does not declare.
pub(crate) fn batch_of_node() -> String {
    format!("#!lua flags=allow-cross-slot-keys\n{}", several("batch"))
}

/// Returns the text of a script by its name, for `redis-cli --eval`. A script of one call takes text as arguments.
#[must_use]
pub fn text(name: &str) -> Option<String> {
    match name {
        "all" | "batch" | "correct" => Some(several(name)),
        "batch_of_node" => Some(batch_of_node()),
        _ => FORMS.iter().find(|form| form.name == name).map(|form| form.script("by_hand")),
    }
}

/// The form of a limit: the function of `lua/` that decides it, and the arguments that the function takes.
pub(crate) struct Form {
    name: &'static str,
    /// The name of the function, and of its file in `lua/`.
    pub(crate) function: &'static str,
    /// The last arguments of the function.
    arguments: &'static [Argument],
}

/// All forms, in the order of the lists that `lua/several.lua` reads.
pub(crate) const FORMS: [Form; 7] = [
    form("sliding", "sliding", &[THRESHOLD, PERIOD]),
    form("fixed", "fixed", &[THRESHOLD, PERIOD, SHIFT]),
    form("sliding_counter", "sliding_counter", &[THRESHOLD, PERIOD, GRAIN, SPAN]),
    form("bucket", "bucket", &[BURST, TOKEN, DRAIN]),
    form("leased_bucket", "bucket", &[BURST, TOKEN, DRAIN, TERM, RESERVE]),
    form("slots", "slots", &[THRESHOLD, HOLD, PROCESS, SEQ, UNITS, EPOCH, WAITED]),
    form("calendar", "fixed", &[THRESHOLD, PERIOD, SHIFT, FIRST, SECOND, THIRD, LAST]),
];

const fn form(name: &'static str, function: &'static str, arguments: &'static [Argument]) -> Form {
    Form { name, function, arguments }
}

/// A number that a function of `lua/` takes: its name there, and its value for the terms of a limit, what this process
/// states of calls in flight, and the boundaries of the calendar around the time of the call. It has 7 bytes, in two's
/// complement.
type Argument = (&'static str, fn(&Terms, &Statement, &[u64; 4]) -> u64);

const THRESHOLD: Argument = ("threshold", |terms, _, _| terms.threshold);
const PERIOD: Argument = ("period", |terms, _, _| terms.period_us());
const SHIFT: Argument = ("shift", |terms, _, _| terms.shift_us().unwrap_or(u64::MAX));
const BURST: Argument = ("burst", |terms, _, _| terms.capacity + terms.lease_reserve);
const TOKEN: Argument = ("token", |terms, _, _| terms.rate.token);
const DRAIN: Argument = ("drain", |terms, _, _| terms.rate.drain);
const TERM: Argument = ("term", |terms, _, _| terms.lease_us());
const RESERVE: Argument = ("reserve", |terms, _, _| terms.lease_reserve);
const GRAIN: Argument = ("grain", |terms, _, _| terms.scale.grain);
const SPAN: Argument = ("span", |terms, _, _| terms.scale.span);
const HOLD: Argument = ("hold", |_, stated, _| stated.hold_us);
const PROCESS: Argument = ("process", |_, stated, _| stated.process);
const SEQ: Argument = ("seq", |_, stated, _| stated.seq);
const UNITS: Argument = ("units", |_, stated, _| stated.units);
const EPOCH: Argument = ("epoch", |_, stated, _| stated.epoch);
const WAITED: Argument = ("waited", |_, stated, _| stated.waited_us);
const FIRST: Argument = ("first", |_, _, boundaries| boundaries[0]);
const SECOND: Argument = ("second", |_, _, boundaries| boundaries[1]);
const THIRD: Argument = ("third", |_, _, boundaries| boundaries[2]);
const LAST: Argument = ("last", |_, _, boundaries| boundaries[3]);

impl Form {
    /// Returns the index of the form of a limit in [`FORMS`].
    pub(crate) fn index_of(terms: &Terms) -> usize {
        match terms.identity.algorithm {
            Algorithm::Sliding => 0,
            Algorithm::Fixed if terms.has_calendar_windows() => 6,
            Algorithm::Fixed => 1,
            Algorithm::SlidingCounter => 2,
            Algorithm::TokenBucket | Algorithm::LeakyBucket if terms.lease_reserve > 0 => 4,
            Algorithm::TokenBucket | Algorithm::LeakyBucket => 3,
            Algorithm::InFlight => 5,
        }
    }

    /// Appends the packed arguments of the limit of a charge, for a call at the time `now`; `None` by the clock of the
    /// server.
    pub(crate) fn put_terms(&self, out: &mut Vec<u8>, charge: &Charge, now: Option<u64>) {
        let (terms, stated) = (&charge.terms, charge.statement.unwrap_or_default());
        let boundaries = if terms.has_calendar_windows() {
            terms.boundaries(now.unwrap_or_else(wall))
        } else {
            [0; 4]
        };
        for (_, value) in self.arguments {
            out.extend(&value(terms, &stated, &boundaries).to_be_bytes()[1..]);
        }
    }

    /// Returns the format of the packed arguments for `struct.unpack`.
    pub(crate) fn layout(&self) -> String {
        "i7".repeat(self.arguments.len())
    }
}

/// Returns the time of this process.
fn wall() -> u64 {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    time.map_or(0, |time| time.as_micros() as u64)
}

/// Lists files of `lua/` by their names.
macro_rules! files {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../../../lua/", $name, ".lua")))),*]
    };
}

/// The name and the text of each file.
const FILES: &[(&str, &str)] = files! {
    "all" "announce" "announced" "answer" "batch" "bucket" "by_hand" "changes" "correct" "each" "fixed" "least_levels"
    "one" "prelude" "processes" "read_rules" "rules" "several" "sliding" "sliding_counter" "slots" "usual" "write_state"
};

/// Returns the text of a file; empty if there is none.
pub(crate) fn text_of(name: &str) -> &'static str {
    FILES.iter().find(|(known, _)| *known == name).map_or("", |(_, text)| text)
}

/// Composes a script: follows the directives of a text, and leaves comments out.
pub(crate) fn compose(text: &str) -> String {
    let (mut script, mut included) = (String::new(), HashSet::new());
    add(&mut script, &mut included, text);
    script
}

/// Adds a text to a script, which has the files `included`.
fn add(script: &mut String, included: &mut HashSet<String>, text: &str) {
    for line in text.lines() {
        let code = line.trim_start();
        if let Some(names) = code.strip_prefix("--@include ") {
            for name in names.split(", ") {
                if included.insert(name.to_owned()) {
                    add(script, included, text_of(name));
                }
            }
        } else if let Some(name) = code.strip_prefix("--@inline ") {
            add(script, included, body_of(name));
        } else if !code.is_empty() && !code.starts_with("--") {
            script.extend([line, "\n"]);
        }
    }
}

/// Returns the body of the function of a file.
fn body_of(name: &str) -> &'static str {
    let function = text_of(name).split_once(&format!("\nlocal function {name}("));
    let body = function.and_then(|(_, function)| function.split_once(")\n"));
    body.and_then(|(_, body)| body.strip_suffix("end\n")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The first arguments of the function of each algorithm, and those of the function of `lua/answer.lua`.
    const COMMON: &str = "call, pack, unpack, key, clock, given";
    const COMMON_OF_ANSWER: &str = "call, pack, key, clock, given, block";

    /// The results of all functions of algorithms, which are arguments of `lua/answer.lua`.
    const RESULTS: &str =
        "allowed, remaining, retry, reset, slack, version, lives, blocked, changed, receipt";

    /// Returns the names of the arguments of a Lua function. Its file has the same name.
    fn arguments_of(function: &str) -> Vec<String> {
        let definition = format!("\nlocal function {function}(");
        let (_, rest) = text_of(function).split_once(&definition).expect(function);
        let (arguments, _) = rest.split_once(')').expect("an end");
        arguments.split(',').map(|argument| argument.trim().to_owned()).collect()
    }

    /// Returns the words with which a text compares `op`.
    fn known(text: &str) -> BTreeSet<&str> {
        let compared =
            ["op == '", "op ~= '"].into_iter().flat_map(|start| text.split(start).skip(1));
        compared.map(|rest| rest.split('\'').next().expect("a first part")).collect()
    }

    #[test]
    fn the_functions_take_what_the_scripts_pass() {
        for form in &FORMS {
            let arguments = arguments_of(form.function);
            let arguments: Vec<&str> = arguments.iter().map(|argument| &**argument).collect();
            let own = form.arguments.iter().map(|(name, _)| *name);
            let passed: Vec<&str> =
                COMMON.split(", ").chain(CALL_NAMES.split(' ')).chain(own).collect();
            let (taken, left) = arguments.split_at(passed.len());
            assert_eq!(taken, passed, "{}", form.name);
            // Not all scripts pass the last ones.
            let optional: &[&str] = match form.name {
                "bucket" => &["term", "reserve"],
                "fixed" => &["first", "second", "third", "last"],
                _ => &[],
            };
            assert_eq!(left, optional, "{}", form.name);
        }
    }

    #[test]
    fn the_functions_return_what_the_answer_takes() {
        for form in &FORMS {
            let text = text_of(form.function);
            assert!(text.ends_with(&format!("\n  return {RESULTS}\nend\n")), "{}", form.name);
        }
        assert!(text_of("one").contains(&format!("\nlocal {RESULTS} =\n")));
        assert_eq!(arguments_of("answer").join(", "), format!("{COMMON_OF_ANSWER}, {RESULTS}"));
    }

    #[test]
    fn the_functions_know_the_words_of_the_operations() {
        for form in &FORMS {
            let own = match form.function {
                "bucket" => Some("cancel"),
                "slots" => Some("hold"),
                _ => None,
            };
            let words = ["take", "peek", "correct"].into_iter().chain(own);
            let text = text_of(form.function);
            assert_eq!(known(text), words.collect::<BTreeSet<_>>(), "{}", form.name);
        }
    }

    #[test]
    fn every_script_can_be_printed() {
        for form in &FORMS {
            let text = text(form.name).expect("a script");
            assert!(text.contains(&several("one")), "{}", form.name);
        }
        for name in ["all", "batch", "batch_of_node", "correct"] {
            assert!(text(name).is_some(), "{name}");
        }
        assert!(text("another").is_none());
    }
}

#[cfg(test)]
mod form_tests {
    use std::time::Duration;

    use super::*;
    use crate::key::KeyId;
    use crate::limit::Limit;

    #[test]
    fn the_lists_of_the_scripts_are_those_of_the_forms() {
        let functions = FORMS.each_ref().map(|form| form.function.to_owned());
        for list in [functions, FORMS.each_ref().map(|form| format!("'>{}'", form.layout()))] {
            assert!(text_of("several").contains(&format!(" = {{ {} }}\n", list.join(", "))));
        }
    }

    #[test]
    fn terms_are_packed_as_the_layout_says() {
        let limit = Limit::fixed("terms", 7, Duration::from_secs(1));
        let terms = *limit.terms();
        let key_id = KeyId::new(&terms.identity, 0);
        let charge = Charge { terms, key_id, count_name: Vec::new(), cost: 1, statement: None };
        let (limit, mut out) = (&terms, Vec::new());
        let form = &FORMS[Form::index_of(limit)];
        form.put_terms(&mut out, &charge, None);
        assert_eq!((form.name, &*form.layout()), ("fixed", "i7i7i7"));
        assert_eq!(out[..7], [0, 0, 0, 0, 0, 0, 7]);
        assert_eq!(out[7..14], 1_000_000_u64.to_be_bytes()[1..]);
        assert_eq!(out[14..], [255; 7]);
    }
}

#[cfg(test)]
mod compose_tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_file_is_in_the_list() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
        let entries = fs::read_dir(folder).expect("the folder of the scripts");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("an entry").path())
            .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
            .collect();
        names.sort();
        assert_eq!(names, FILES.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }

    #[test]
    fn a_file_stands_once_in_a_script_and_before_the_files_that_include_it() {
        let script = several("correct");
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
        let script = FORMS[1].script("one");
        assert!(script.starts_with("local function fixed("));
        assert!(!script.contains("--") && !script.contains("\n\n"));
    }
}
