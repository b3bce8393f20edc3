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
    /// Returns the script that decides one call.
    pub(crate) fn script(self) -> String {
        self.compose("one")
    }

    /// Returns the script that decides one call, with text as its arguments and as its reply.
    fn by_hand(self) -> String {
        self.compose("by_hand")
    }

    /// Returns a script of one call. Its main file uses the function of this form, and the format and the names of the
    /// values that a call has.
    fn compose(self, main: &str) -> String {
        let (function, layout, mut names) = (self.function(), self.layout(), CALL_NAMES.to_owned());
        for (name, _) in self.arguments() {
            names.extend([" ", name]);
        }
        compose(&format!(
            "--@include {function}\n\
             local algorithm, LAYOUT, NAMES = {function}, '>{CALL}{layout}', '{names}'\n\
             --@include {main}"
        ))
    }
}

/// Returns a script of several limits by the name of its main file.
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
    Some(match name {
        "sliding" => Form::Sliding.by_hand(),
        "fixed" => Form::Fixed.by_hand(),
        "calendar" => Form::Calendar.by_hand(),
        "sliding_counter" => Form::SlidingCounter.by_hand(),
        "bucket" => Form::Bucket.by_hand(),
        "leased_bucket" => Form::LeasedBucket.by_hand(),
        "slots" => Form::Slots.by_hand(),
        "all" | "batch" | "correct" => several(name),
        "batch_of_node" => batch_of_node(),
        _ => return None,
    })
}

/// The form of a limit: the function of `lua/` that decides it, and the arguments that the function takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Sliding,
    Fixed,
    SlidingCounter,
    Bucket,
    /// A bucket of a limit that leases.
    LeasedBucket,
    /// Calls in flight.
    Slots,
    /// Fixed windows of several lengths.
    Calendar,
}

/// What a process tells a function of `lua/`: the terms of a limit, what it states of calls in flight, and the
/// boundaries of the calendar around the time of the call.
struct Told<'a> {
    terms: &'a Terms,
    stated: Statement,
    boundaries: [u64; 4],
}

/// A number that a function of `lua/` takes: its name there, and its value. It has 7 bytes, in two's complement.
type Argument = (&'static str, fn(&Told<'_>) -> u64);

const THRESHOLD: Argument = ("threshold", |told| told.terms.threshold);
const PERIOD: Argument = ("period", |told| told.terms.period_us());
const SHIFT: Argument = ("shift", |told| told.terms.shift_us().unwrap_or(u64::MAX));
const BURST: Argument = ("burst", |told| told.terms.capacity + told.terms.lease_reserve);
const TOKEN: Argument = ("token", |told| told.terms.rate.token);
const DRAIN: Argument = ("drain", |told| told.terms.rate.drain);
const TERM: Argument = ("term", |told| told.terms.lease_us());
const RESERVE: Argument = ("reserve", |told| told.terms.lease_reserve);

impl Form {
    /// All forms, in the order of the lists that `lua/several.lua` reads.
    pub(crate) const EACH: [Self; 7] = [
        Self::Sliding,
        Self::Fixed,
        Self::SlidingCounter,
        Self::Bucket,
        Self::LeasedBucket,
        Self::Slots,
        Self::Calendar,
    ];

    /// Returns the form of a limit.
    pub(crate) fn of(terms: &Terms) -> Self {
        match terms.identity.algorithm {
            Algorithm::Sliding => Self::Sliding,
            Algorithm::Fixed if terms.has_calendar_windows() => Self::Calendar,
            Algorithm::Fixed => Self::Fixed,
            Algorithm::InFlight => Self::Slots,
            Algorithm::SlidingCounter => Self::SlidingCounter,
            Algorithm::TokenBucket | Algorithm::LeakyBucket if terms.lease_reserve > 0 => {
                Self::LeasedBucket
            }
            Algorithm::TokenBucket | Algorithm::LeakyBucket => Self::Bucket,
        }
    }

    /// Returns the index in [`EACH`](Self::EACH).
    pub(crate) fn index(self) -> usize {
        self as usize
    }

    /// Returns the name of the function, and of its file in `lua/`.
    pub(crate) fn function(self) -> &'static str {
        match self {
            Self::Sliding => "sliding",
            Self::Fixed | Self::Calendar => "fixed",
            Self::SlidingCounter => "sliding_counter",
            Self::Bucket | Self::LeasedBucket => "bucket",
            Self::Slots => "slots",
        }
    }

    /// Returns the last arguments of the function.
    fn arguments(self) -> &'static [Argument] {
        match self {
            Self::Sliding => &[THRESHOLD, PERIOD],
            Self::Fixed => &[THRESHOLD, PERIOD, SHIFT],
            Self::Calendar => &[
                THRESHOLD,
                PERIOD,
                SHIFT,
                ("first", |told| told.boundaries[0]),
                ("second", |told| told.boundaries[1]),
                ("third", |told| told.boundaries[2]),
                ("last", |told| told.boundaries[3]),
            ],
            Self::SlidingCounter => &[
                THRESHOLD,
                PERIOD,
                ("grain", |told| told.terms.scale.grain),
                ("span", |told| told.terms.scale.span),
            ],
            Self::Bucket => &[BURST, TOKEN, DRAIN],
            Self::LeasedBucket => &[BURST, TOKEN, DRAIN, TERM, RESERVE],
            Self::Slots => &[
                THRESHOLD,
                ("hold", |told| told.stated.hold_us),
                ("process", |told| told.stated.process),
                ("seq", |told| told.stated.seq),
                ("units", |told| told.stated.units),
                ("epoch", |told| told.stated.epoch),
                ("waited", |told| told.stated.waited_us),
            ],
        }
    }

    /// Appends the packed arguments of the limit of a charge, for a call at the time `now`; `None` by the clock of the
    /// server.
    pub(crate) fn put_terms(self, out: &mut Vec<u8>, charge: &Charge, now: Option<u64>) {
        let (terms, stated) = (&charge.terms, charge.statement.unwrap_or_default());
        let boundaries = match self {
            Self::Calendar => terms.boundaries(now.unwrap_or_else(wall)),
            _ => [0; 4],
        };
        let told = Told { terms, stated, boundaries };
        for (_, value) in self.arguments() {
            out.extend(&value(&told).to_be_bytes()[1..]);
        }
    }

    /// Returns the format of the packed arguments for `struct.unpack`.
    pub(crate) fn layout(self) -> String {
        "i7".repeat(self.arguments().len())
    }
}

/// Returns the time of this process.
fn wall() -> u64 {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    time.map_or(0, |time| time.as_micros() as u64)
}

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

/// Composes a script: follows the directives of a text, and leaves comments out.
pub(crate) fn compose(text: &str) -> String {
    let mut script = Composition::default();
    script.add(text);
    script.text
}

#[derive(Default)]
struct Composition {
    included: HashSet<String>,
    text: String,
}

impl Composition {
    fn add(&mut self, text: &str) {
        for line in text.lines() {
            let code = line.trim_start();
            if let Some(names) = code.strip_prefix("--@include ") {
                for name in names.split(", ") {
                    if self.included.insert(name.to_owned()) {
                        self.add(text_of(name));
                    }
                }
            } else if let Some(name) = code.strip_prefix("--@inline ") {
                self.add(body_of(name));
            } else if !code.is_empty() && !code.starts_with("--") {
                self.text.extend([line, "\n"]);
            }
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
        for form in Form::EACH {
            let arguments = arguments_of(form.function());
            let arguments: Vec<&str> = arguments.iter().map(|argument| &**argument).collect();
            let own = form.arguments().iter().map(|(name, _)| *name);
            let passed: Vec<&str> =
                COMMON.split(", ").chain(CALL_NAMES.split(' ')).chain(own).collect();
            let (taken, left) = arguments.split_at(passed.len());
            assert_eq!(taken, passed, "{form:?}");
            // Not all scripts pass the last ones.
            let optional: &[&str] = match form {
                Form::Bucket => &["term", "reserve"],
                Form::Fixed => &["first", "second", "third", "last"],
                _ => &[],
            };
            assert_eq!(left, optional, "{form:?}");
        }
    }

    #[test]
    fn the_functions_return_what_the_answer_takes() {
        for form in Form::EACH {
            let text = text_of(form.function());
            assert!(text.ends_with(&format!("\n  return {RESULTS}\nend\n")), "{form:?}");
        }
        assert!(text_of("one").contains(&format!("\nlocal {RESULTS} =\n")));
        assert_eq!(arguments_of("answer").join(", "), format!("{COMMON_OF_ANSWER}, {RESULTS}"));
    }

    #[test]
    fn the_functions_know_the_words_of_the_operations() {
        for form in Form::EACH {
            let own = match form {
                Form::Bucket | Form::LeasedBucket => Some("cancel"),
                Form::Slots => Some("hold"),
                _ => None,
            };
            let words = ["take", "peek", "correct"].into_iter().chain(own);
            let text = text_of(form.function());
            assert_eq!(known(text), words.collect::<BTreeSet<_>>(), "{form:?}");
        }
    }

    #[test]
    fn every_script_can_be_printed() {
        for form in Form::EACH {
            let text = text(form.function()).expect("a script");
            assert!(text.contains(&several("one")), "{form:?}");
        }
        for name in ["leased_bucket", "all", "batch", "batch_of_node", "correct"] {
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
        let functions = Form::EACH.map(|form| form.function().to_owned());
        for list in [functions, Form::EACH.map(|form| format!("'>{}'", form.layout()))] {
            assert!(text_of("several").contains(&format!(" = {{ {} }}\n", list.join(", "))));
        }
    }

    #[test]
    fn each_form_is_at_its_index() {
        for (index, form) in Form::EACH.into_iter().enumerate() {
            assert_eq!(form.index(), index);
        }
    }

    #[test]
    fn terms_are_packed_as_the_layout_says() {
        let limit = Limit::fixed("terms", 7, Duration::from_secs(1));
        let terms = *limit.terms();
        let key_id = KeyId::new(&terms.identity, 0);
        let charge = Charge { terms, key_id, count_name: Vec::new(), cost: 1, statement: None };
        let (limit, mut out) = (&terms, Vec::new());
        Form::of(limit).put_terms(&mut out, &charge, None);
        assert_eq!(Form::of(limit).layout(), "i7i7i7");
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
        let script = Form::Fixed.script();
        assert!(script.starts_with("local function fixed("));
        assert!(!script.contains("--") && !script.contains("\n\n"));
    }
}
