//! Runs the targets. cargo-fuzz runs them with libFuzzer, which needs a nightly compiler and follows the code that an
//! input reaches. `cargo run` runs them with any compiler: proptest edits the inputs of the corpus for a minute, or for
//! `FUZZ_SECONDS`, and makes an input that fails as small as it can.

use std::env;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

pub use arbitrary;
#[cfg(fuzzing)]
pub use libfuzzer_sys;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestRunner};

/// Defines the target of a program: a closure of one input.
#[macro_export]
macro_rules! target {
    (|$input:ident: $type:ty| $body:block) => {
        #[cfg(fuzzing)]
        $crate::libfuzzer_sys::fuzz_target!(|$input: $type| $body);

        #[cfg(not(fuzzing))]
        fn main() {
            $crate::play(env!("CARGO_BIN_NAME"), |bytes| {
                let unstructured = $crate::arbitrary::Unstructured::new(bytes);
                let input =
                    <$type as $crate::arbitrary::Arbitrary>::arbitrary_take_rest(unstructured);
                let Ok($input) = input else { return };
                $body
            });
        }
    };
}

/// A change of an input.
#[derive(Clone, Debug)]
enum Edit {
    /// Replaces so many bytes at this place.
    Replace(Index, u8, Vec<u8>),
    /// Copies so many bytes from one place to another.
    Copy(Index, u8, Index),
}

impl Edit {
    fn apply(&self, input: &mut Vec<u8>) {
        match self {
            Self::Replace(at, count, by) => {
                let at = at.index(input.len() + 1);
                let end = input.len().min(at + usize::from(*count));
                input.splice(at..end, by.iter().copied());
            }
            Self::Copy(from, count, to) => {
                let from = from.index(input.len() + 1);
                let end = input.len().min(from + usize::from(*count));
                let (copied, to) = (input[from..end].to_vec(), to.index(input.len() + 1));
                input.splice(to..to, copied);
            }
        }
    }
}

/// Returns the inputs of a target that are known.
fn corpus(root: &Path, name: &str) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(root.join("corpus").join(name)).expect("a corpus");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.map(|path| fs::read(path).expect("a file")).collect()
}

/// Returns the words that inputs of a target can have, in the format of libFuzzer: a quoted text a line.
fn words(root: &Path, name: &str) -> Vec<Vec<u8>> {
    let text = fs::read_to_string(root.join(format!("{name}.dict"))).unwrap_or_default();
    let quoted = text.lines().filter_map(|line| line.strip_prefix('"')?.strip_suffix('"'));
    quoted.map(|word| word.replace("\\\"", "\"").replace("\\\\", "\\").into_bytes()).collect()
}

fn inputs(corpus: Vec<Vec<u8>>, words: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let inserted = {
        let any_bytes = vec(any::<u8>(), 0..8).boxed();
        let parts = select(corpus.clone()).boxed();
        match words.is_empty() {
            true => prop_oneof![4 => any_bytes, 1 => parts].boxed(),
            false => prop_oneof![2 => any_bytes, 1 => parts, 4 => select(words)].boxed(),
        }
    };
    let edit = prop_oneof![
        (any::<Index>(), 0..32_u8, inserted)
            .prop_map(|(at, count, by)| Edit::Replace(at, count, by)),
        (any::<Index>(), 0..32_u8, any::<Index>())
            .prop_map(|(from, count, to)| Edit::Copy(from, count, to)),
    ];
    (select(corpus), vec(edit, 0..6)).prop_map(|(mut input, edits)| {
        edits.iter().for_each(|edit| edit.apply(&mut input));
        input
    })
}

/// Plays inputs. Panics with the smallest that fails.
pub fn play(name: &str, target: impl Fn(&[u8])) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let seconds = env::var("FUZZ_SECONDS").map_or(60, |text| text.parse().expect("a number"));
    let (started, corpus) = (Instant::now(), corpus(root, name));
    corpus.iter().for_each(|input| target(input));
    let inputs = inputs(corpus, words(root, name));
    let (cases, mut played) = (1_000, 0);
    while started.elapsed() < Duration::from_secs(seconds) {
        let config = Config { cases, failure_persistence: None, ..Config::default() };
        let outcome = TestRunner::new(config).run(&inputs, |input| {
            target(&input);
            Ok(())
        });
        if let Err(error) = outcome {
            panic!("{name}: {error}");
        }
        played += cases;
    }
    println!("{name}: {played} inputs");
}
