//! Rounds in turns: whatever slows the machine for a while slows all that are compared.

/// The medians of `N` figures of each, over `rounds` rounds in which each has its turn. One round
/// before them makes the keys and warms what can be warm.
pub(crate) fn in_turns<W, const N: usize>(
    rounds: usize,
    all: &[W],
    mut measure: impl FnMut(&W) -> [f64; N],
) -> Vec<[f64; N]> {
    let mut taken = vec![Vec::new(); all.len()];
    for round in 0..=rounds {
        // Each follows each of the others about as often.
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
        // What failed once has no figure.
        if figures.iter().any(|figure| figure.is_nan()) {
            return f64::NAN;
        }
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    })
}
