//! Finds the word that a typing error was meant to be.

/// The candidate nearest to `word`, if `word` can be a typing error for it: at most one edit for
/// every three letters, and at least one is allowed.
pub(crate) fn closest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let edits = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|&(distance, candidate)| distance <= edits && distance < candidate.chars().count())
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

/// The `most` candidates that are nearest to `word`, the nearest first.
pub(crate) fn nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
    most: usize,
) -> Vec<&'a str> {
    let mut all: Vec<_> = candidates.into_iter().collect();
    all.sort_by_cached_key(|candidate| distance(word, candidate));
    all.truncate(most);
    all
}

/// The optimal string alignment distance: how many letters have to be inserted, removed, replaced or
/// swapped with their neighbor to turn `from` into `to`. Three rows of its table are kept.
fn distance(from: &str, to: &str) -> usize {
    strsim::osa_distance(&from.to_lowercase(), &to.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::{closest, distance, nearest};

    #[test]
    fn counts_each_kind_of_edit_once() {
        assert_eq!(distance("period", "period"), 0);
        assert_eq!(distance("peroid", "period"), 1, "a swap");
        assert_eq!(distance("perod", "period"), 1, "a missing letter");
        assert_eq!(distance("periodd", "period"), 1, "an extra letter");
        assert_eq!(distance("pariod", "period"), 1, "a wrong letter");
        assert_eq!(distance("", "key"), 3);
        assert_eq!(distance("key", ""), 3);
    }

    #[test]
    fn lists_the_nearest_words_first() {
        assert_eq!(
            nearest("periods", ["key", "cost", "period", "permit"], 2),
            ["period", "permit"]
        );
    }

    #[test]
    fn recognizes_a_typing_error_and_not_another_word() {
        let names = ["period", "threshold", "key", "cost"];
        assert_eq!(closest("treshhold", names), Some("threshold"));
        assert_eq!(closest("Period", names), Some("period"));
        assert_eq!(closest("kye", names), Some("key"));
        assert_eq!(closest("foo", names), None);
        assert_eq!(closest("x", ["y"]), None, "no letter is the same");
    }
}
