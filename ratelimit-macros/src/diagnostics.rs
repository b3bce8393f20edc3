//! Collects every mistake of one attribute, so that they are reported together, and finds the
//! word somebody meant.

use std::cell::RefCell;
use std::collections::BTreeSet;

use proc_macro2::TokenStream;

/// The mistakes found so far.
#[derive(Default)]
pub(crate) struct Errors {
    found: RefCell<Vec<syn::Error>>,
}

/// Evidence that a mistake was recorded. Only [`Errors`] makes one, so a `Result<T, Reported>`
/// cannot lose its value in silence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reported(());

impl Errors {
    pub(crate) fn is_empty(&self) -> bool {
        self.found.borrow().is_empty()
    }

    /// Records one error, or several that were combined.
    pub(crate) fn report(&self, error: syn::Error) -> Reported {
        self.found.borrow_mut().push(error);
        Reported(())
    }

    /// Turns a result with an error into one whose error is recorded.
    pub(crate) fn note<T>(&self, result: syn::Result<T>) -> Result<T, Reported> {
        result.map_err(|error| self.report(error))
    }

    /// The value, if no mistake was recorded at all; otherwise the `compile_error!`s.
    pub(crate) fn conclude<T>(self, outcome: Result<T, Reported>) -> Result<T, TokenStream> {
        let found = self.found.into_inner();
        match outcome {
            Ok(value) if found.is_empty() => Ok(value),
            _ => Err(found.iter().map(syn::Error::to_compile_error).collect()),
        }
    }
}

/// The candidate nearest to `word`, if it is near enough to be a slip: one edit per three letters.
pub(crate) fn closest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let slips = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|&(distance, candidate)| distance <= slips && distance < candidate.chars().count())
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

/// `` `a`, `b`, `c` ``, each name once, in the order given.
pub(crate) fn quoted<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut seen = BTreeSet::new();
    let quoted: Vec<_> = names
        .into_iter()
        .filter(|name| seen.insert(*name))
        .map(|name| format!("`{name}`"))
        .collect();
    quoted.join(", ")
}

/// How many letters to insert, remove, replace or swap with their neighbour to get from `from` to
/// `to`: the optimal string alignment distance, on three rows of its table.
fn distance(from: &str, to: &str) -> usize {
    let from: Vec<char> = from.to_lowercase().chars().collect();
    let to: Vec<char> = to.to_lowercase().chars().collect();
    let mut before = vec![0; to.len() + 1];
    let mut above: Vec<usize> = (0..=to.len()).collect();
    for i in 1..=from.len() {
        let mut row = vec![i; to.len() + 1];
        for j in 1..=to.len() {
            let replaced = above[j - 1] + usize::from(from[i - 1] != to[j - 1]);
            row[j] = replaced.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut above, row);
    }
    above[to.len()]
}

#[cfg(test)]
mod tests {
    use super::{closest, distance, quoted};

    #[test]
    fn distance_counts_each_kind_of_slip_once() {
        assert_eq!(distance("period", "period"), 0);
        assert_eq!(distance("peroid", "period"), 1, "a swap");
        assert_eq!(distance("perod", "period"), 1, "a missing letter");
        assert_eq!(distance("periodd", "period"), 1, "an extra letter");
        assert_eq!(distance("pariod", "period"), 1, "a wrong letter");
        assert_eq!(distance("", "key"), 3);
        assert_eq!(distance("key", ""), 3);
    }

    #[test]
    fn a_slip_is_recognised_and_another_word_is_not() {
        let names = ["period", "threshold", "key", "cost"];
        assert_eq!(closest("treshhold", names), Some("threshold"));
        assert_eq!(closest("Period", names), Some("period"));
        assert_eq!(closest("kye", names), Some("key"));
        assert_eq!(closest("foo", names), None);
        assert_eq!(closest("x", ["y"]), None, "nothing of the word is left");
    }

    #[test]
    fn names_are_listed_once() {
        assert_eq!(quoted(["b", "a", "b"]), "`b`, `a`");
    }
}
