//! The texts of the scripts: which files of `lua/` they consist of, and the words that the runtime writes into them.

use super::compose::compose;
use super::form::Form;

/// The format of the operation, its cost, its birth and its operand, which precede the arguments of a form.
const CALL: &str = "si7I7I7";
const CALL_NAMES: [&str; 4] = ["op", "cost", "birth", "operand"];

impl Form {
    /// Returns the script that decides one call.
    pub(crate) fn script(self) -> String {
        compose("one", &|word| self.value(word))
    }

    /// Returns the script that decides one call, with text as its arguments and as its reply.
    fn by_hand(self) -> String {
        compose("by_hand", &|word| self.value(word))
    }

    /// Returns the value of a word in a script of one call.
    fn value(self, word: &str) -> Option<String> {
        Some(match word {
            "algorithm" => self.function().to_owned(),
            "layout" => format!("'>{CALL}{}'", self.layout()),
            "terms" => format!("'>{}'", self.layout()),
            "names" => {
                let arguments = self.arguments().iter().map(|argument| argument.name);
                listed(CALL_NAMES.into_iter().chain(arguments).map(|name| format!("'{name}'")))
            }
            _ => return None,
        })
    }
}

/// Returns the value of a word in a script of several limits.
fn value_of_each(word: &str) -> Option<String> {
    Some(match word {
        "algorithms" => listed(Form::EACH.map(|form| form.function().to_owned())),
        "layouts" => listed(Form::EACH.map(|form| format!("'>{}'", form.layout()))),
        "slots" => Form::Slots.function().to_owned(),
        _ => return None,
    })
}

fn listed(items: impl IntoIterator<Item = String>) -> String {
    items.into_iter().collect::<Vec<_>>().join(", ")
}

/// Returns a script of several limits.
pub(crate) fn several(name: &str) -> String {
    compose(name, &value_of_each)
}

/// Returns the script that decides calls of keys in any hash slots of a node, which it does not declare.
pub(crate) fn batch_of_node() -> String {
    format!("#!lua flags=allow-cross-slot-keys\n{}", several("batch"))
}

/// Returns the script that states calls in flight.
pub(crate) fn hold() -> String {
    compose("hold", &|word| Form::Slots.value(word))
}

/// Returns the text of a script by its name, for `redis-cli --eval`. A script of one call takes text as arguments.
#[must_use]
pub fn text(name: &str) -> Option<String> {
    Some(match name {
        "sliding" => Form::Sliding.by_hand(),
        "fixed" => Form::Fixed.by_hand(),
        "sliding_counter" => Form::SlidingCounter.by_hand(),
        "bucket" => Form::Bucket.by_hand(),
        "leased_bucket" => Form::LeasedBucket.by_hand(),
        "slots" => Form::Slots.by_hand(),
        "all" | "batch" | "correct" => several(name),
        "batch_of_node" => batch_of_node(),
        "hold" => hold(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::compose::text_of;
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
            let own = form.arguments().iter().map(|argument| argument.name);
            let passed: Vec<&str> = COMMON.split(", ").chain(CALL_NAMES).chain(own).collect();
            let (taken, left) = arguments.split_at(passed.len());
            assert_eq!(taken, passed, "{form:?}");
            // The script of a limit that does not lease does not pass the last two.
            let optional: &[&str] = if form == Form::Bucket { &["term", "reserve"] } else { &[] };
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
            let name = form.function();
            assert!(
                text(name).is_some_and(|text| text.contains(&form.script()) || name == "bucket")
            );
        }
        for name in ["leased_bucket", "all", "batch", "batch_of_node", "correct", "hold"] {
            assert!(text(name).is_some(), "{name}");
        }
        assert!(text("another").is_none());
    }
}
