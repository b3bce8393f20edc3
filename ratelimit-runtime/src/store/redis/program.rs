//! The texts of the scripts: files of `lua/`, one after the other, with a few generated lines between them.

use super::form::Form;

/// The format of the operation, the cost and the moment, which precede the arguments of a form.
const CALL: &str = "sI4I7";
const CALL_NAMES: [&str; 3] = ["op", "cost", "moment"];

/// The first arguments of all functions of algorithms.
const COMMON: &str = "call, pack, unpack, key, clock, given";

/// The results of all functions of algorithms, which are arguments of `lua/answer.lua`.
const RESULTS: &str = "allowed, remaining, retry, reset, slack, version, lives, changed, receipt";

const PRELUDE: &str = include_str!("../../../lua/prelude.lua");
const ANSWER: &str = include_str!("../../../lua/answer.lua");
const SEVERAL: &str = include_str!("../../../lua/several.lua");
const ALL: &str = include_str!("../../../lua/all.lua");
const CLOSING: &str = include_str!("../../../lua/closing.lua");
const CLOSE: &str = include_str!("../../../lua/close.lua");
const EACH: &str = include_str!("../../../lua/each.lua");
const OF_NODE: &str = include_str!("../../../lua/of_node.lua");
const USUAL: &str = include_str!("../../../lua/usual.lua");
const VALUES: &str = include_str!("../../../lua/values.lua");
const BATCH: &str = include_str!("../../../lua/batch.lua");
const LINE: &str = include_str!("../../../lua/line.lua");
const SETTLE: &str = include_str!("../../../lua/settle.lua");
const RESET: &str = include_str!("../../../lua/reset.lua");
const BY_HAND: &str = include_str!("../../../lua/by_hand.lua");

const LOWER: &str = include_str!("../../../lua/lower.lua");
const PAGES: &str = include_str!("../../../lua/pages.lua");
const SEGMENTS: &str = include_str!("../../../lua/segments.lua");
const SLIDING: &str = include_str!("../../../lua/sliding.lua");
const FIXED: &str = include_str!("../../../lua/fixed.lua");
const SLIDING_COUNTER: &str = include_str!("../../../lua/sliding_counter.lua");
const LEAST_LEVELS: &str = include_str!("../../../lua/least_levels.lua");
const BUCKET: &str = include_str!("../../../lua/bucket.lua");

impl Form {
    /// Returns the name of the function, and the files that define it.
    fn function(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Sliding => ("sliding", &[LOWER, PAGES, SEGMENTS, SLIDING]),
            Self::Fixed => ("fixed", &[FIXED]),
            Self::SlidingCounter => ("sliding_counter", &[SLIDING_COUNTER]),
            Self::Bucket | Self::LeasedBucket => ("bucket", &[LEAST_LEVELS, BUCKET]),
        }
    }

    /// Returns the script that decides one call. Only calls of closed keys pay for what is between the functions of the
    /// algorithm and the answer.
    pub(crate) fn script(self) -> String {
        let ((name, files), layout) = (self.function(), self.layout());
        let decide = format!(
            "\nlocal key = KEYS[1]\nlocal {RESULTS} =\n  \
             {name}({COMMON}, unpack('>{CALL}{layout}', ARGV[1]))\n\
             if allowed == nil then\n"
        );
        let stands_still = self.stands_still();
        let closed = format!(
            "\nlocal op, cost, moment, terms = unpack('>{CALL}', ARGV[1])\n\
             local function apply(call, clock, op, cost, moment)\n  \
               return answer(call, pack, key, clock, given,\n    \
                 {name}({COMMON}, op, cost, moment, unpack('>{layout}', ARGV[1], terms)))\n\
             end\n\
             return ask_closed(apply, {stands_still}, key, op, cost, moment)\nend\n"
        );
        let files = files.concat();
        [PRELUDE, &files, &decide, &answer(), CLOSING, &closed, ANSWER].concat()
    }

    /// Returns the script that decides one call, with text as its arguments and as its reply.
    fn by_hand(self) -> String {
        let (script, layout) = (self.script(), self.layout());
        let arguments = self.arguments().iter().map(|argument| argument.name);
        let names = CALL_NAMES.into_iter().chain(arguments);
        let names: Vec<String> = names.map(|name| format!("'{name}'")).collect();
        let names = names.join(", ");
        format!(
            "local function script(ARGV)\n{script}end\n\n\
             local NAMES, LAYOUT = {{ {names} }}, '>{CALL}{layout}'\n{BY_HAND}"
        )
    }
}

/// Returns the script that decides several limits together.
pub(crate) fn all() -> String {
    over_several(ALL)
}

/// Returns the script that decides many calls, each by itself.
pub(crate) fn batch() -> String {
    over_several(&[EACH, USUAL, VALUES, BATCH].concat())
}

/// Returns the script that decides many calls of keys in any hash slots of a node.
pub(crate) fn batch_of_node() -> String {
    let prelude = format!("#!lua flags=allow-cross-slot-keys\n{PRELUDE}{OF_NODE}");
    after(&prelude, &[EACH, USUAL, BATCH].concat())
}

/// Returns the script that decides the calls of a line.
pub(crate) fn line() -> String {
    over_several(LINE)
}

/// Returns the script that corrects charges once their calls have ended, and closes and opens keys.
pub(crate) fn settle() -> String {
    over_several(&[CLOSE, EACH, SETTLE].concat())
}

/// Returns the script that removes the state of a sliding log.
pub(crate) fn reset() -> String {
    RESET.to_owned()
}

fn over_several(main: &str) -> String {
    after(PRELUDE, main)
}

fn after(prelude: &str, main: &str) -> String {
    let mut files: Vec<&str> = Vec::new();
    for file in Form::EACH.iter().flat_map(|form| form.function().1) {
        if !files.contains(file) {
            files.push(file);
        }
    }
    let names = Form::EACH.map(|form| form.function().0).join(", ");
    let layouts = Form::EACH.map(|form| format!("'>{}'", form.layout())).join(", ");
    let still = Form::EACH.iter().filter(|form| form.stands_still());
    let still: Vec<_> = still.map(|form| format!("[{}] = true", form.function().0)).collect();
    let still = still.join(", ");
    let lists = format!(
        "\nlocal algorithms = {{ {names} }}\nlocal layouts = {{ {layouts} }}\n\
         local stand_still = {{ {still} }}\n"
    );
    [prelude, &answer(), &files.concat(), CLOSING, &lists, SEVERAL, main].concat()
}

/// Returns `lua/answer.lua` as a function.
fn answer() -> String {
    format!("\nlocal function answer(call, pack, key, clock, given, {RESULTS})\n{ANSWER}end\n")
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
        "all" => all(),
        "batch" => batch(),
        "batch_of_node" => batch_of_node(),
        "line" => line(),
        "settle" => settle(),
        "reset" => reset(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::script::ScriptOp;
    use super::*;
    use crate::algorithm::{BucketOp, Op};

    /// Returns two lists of words: the operations of all algorithms, and the operations of buckets.
    fn words() -> (Vec<&'static str>, Vec<&'static str>) {
        let ops = [Op::Decide, Op::Peek, Op::Refund, Op::Return { at: 0 }].map(|op| match op {
            // A new operation must also be added to the list in the line above.
            Op::Decide | Op::Peek | Op::Refund | Op::Return { .. } => ScriptOp::from(op),
        });
        let of_buckets = [BucketOp::Reserve { wait: 0 }, BucketOp::Cancel { end: 0 }];
        let of_buckets = of_buckets.map(|op| match op {
            BucketOp::Reserve { .. } | BucketOp::Cancel { .. } => ScriptOp::from(op),
        });
        let own = [ScriptOp::acquire(1)];
        // `lua/settle.lua` and `lua/line.lua` use the others.
        let all = ops.into_iter().chain(own).map(ScriptOp::word).chain(["charge"]).collect();
        (all, of_buckets.into_iter().map(ScriptOp::word).chain(["mark", "settle"]).collect())
    }

    /// Returns the words with which a function compares `op`.
    fn known(text: &str) -> Vec<&str> {
        let compared =
            ["op == '", "op ~= '"].into_iter().flat_map(|start| text.split(start).skip(1));
        compared.map(|rest| rest.split('\'').next().expect("a first part")).collect()
    }

    #[test]
    fn the_functions_take_what_the_scripts_pass() {
        for form in Form::EACH {
            let (name, files) = form.function();
            let file = files.last().expect("a file");
            let (_, rest) = file.split_once(&format!("\nlocal function {name}(")).expect(name);
            let (arguments, _) = rest.split_once(')').expect("an end");
            let arguments: Vec<&str> = arguments.split(',').map(str::trim).collect();
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
            let file = form.function().1.last().expect("a file");
            assert!(file.ends_with(&format!("\n  return {RESULTS}\nend\n")), "{form:?}");
        }
    }

    #[test]
    fn the_functions_know_the_words_of_the_operations() {
        let (all, of_buckets) = words();
        for form in Form::EACH {
            let known = known(form.function().1.last().expect("a file"));
            for word in &all {
                assert!(known.contains(word), "{form:?}: {word}");
            }
            for word in &of_buckets {
                let is_bucket = form.function().0 == "bucket";
                assert_eq!(known.contains(word), is_bucket, "{form:?}: {word}");
            }
            for word in known {
                assert!(all.contains(&word) || of_buckets.contains(&word), "{form:?}: {word}");
            }
        }
    }

    #[test]
    fn every_script_can_be_printed() {
        for form in Form::EACH {
            let name = form.function().0;
            assert!(
                text(name).is_some_and(|text| text.contains(&form.script()) || name == "bucket")
            );
        }
        for name in ["leased_bucket", "all", "batch", "batch_of_node", "line", "settle", "reset"] {
            assert!(text(name).is_some(), "{name}");
        }
        assert!(text("another").is_none());
    }
}
