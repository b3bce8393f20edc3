//! Measures in turns, so that a slow phase of the machine slows all candidates alike.

/// Returns the medians of `N` figures for each candidate, over `rounds` rounds. In each round, each candidate has
/// one turn. One round before them creates the keys and fills the caches.
pub(crate) fn in_turns<W, const N: usize>(
    rounds: usize,
    all: &[W],
    mut measure: impl FnMut(&W) -> [f64; N],
) -> Vec<[f64; N]> {
    let mut taken = vec![Vec::new(); all.len()];
    for round in 0..=rounds {
        // Each candidate follows each of the others about as often.
        for turn in 0..all.len() {
            let who = (turn + round) % all.len();
            let figures = measure(&all[who]);
            if round > 0 {
                taken[who].push(figures);
            }
        }
    }
    taken.into_iter().map(|rounds| medians(&rounds)).collect()
}

fn medians<const N: usize>(rounds: &[[f64; N]]) -> [f64; N] {
    std::array::from_fn(|index| {
        let mut figures: Vec<f64> = rounds.iter().map(|figures| figures[index]).collect();
        // A figure that is missing in one round is missing in the result.
        if figures.iter().any(|figure| figure.is_nan()) {
            return f64::NAN;
        }
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    })
}
