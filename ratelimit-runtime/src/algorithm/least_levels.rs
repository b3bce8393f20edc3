//! What a bucket can give back of a charge: at most its least level since the charge. Twin of `lua/least_levels.lua`.
//!
//! If a charge had been smaller by `x` units, the level would have been lower by `x` ever since, unless the bucket
//! would have been full in between: then the rest of its refill would have been lost. So the level now would be lower
//! by `x` or by the least level since the charge, whichever is smaller. (This is the reflection map of a fluid queue.)
//! Once units are given back, the level counts as lower by these units since their charge, for all other charges as
//! well.
//!
//! The least level since a charge never falls from one charge to the next. So a few steps contain it for all charges.
//! If there would be too many steps, the two that differ least become one, at the lower level: then less is given
//! back of some charges, and never more.

/// The most steps: so many that a steady stream of calls, which give back nine tenths of their charges, is admitted at
/// 95 % of the rate and more (`tests/stores/settling/debts.rs`).
const MAX_STEPS: usize = 16;

/// The least level since each charge that can be settled.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeastLevels {
    /// The number of the last charge.
    last: u64,
    /// How many of the steps are in use.
    len: usize,
    /// The oldest charges first; the levels rise. A new step has room before two become one.
    steps: [LevelStep; MAX_STEPS + 1],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LevelStep {
    /// The number of the first charge of this step.
    first: u64,
    /// The least level since the charges from `first` to the next step.
    level: u64,
}

impl LeastLevels {
    /// Records a charge, after which the bucket has this level. Returns its number.
    pub(crate) fn charge(&mut self, level: u64) -> u64 {
        self.last += 1;
        self.steps[self.len] = LevelStep { first: self.last, level };
        self.len += 1;
        self.merge_down(self.len - 1);
        if self.len > MAX_STEPS {
            self.merge_least();
        }
        self.last
    }

    /// Records a charge to which nothing can be given back.
    pub(crate) fn pass(&mut self) {
        self.last += 1;
    }

    /// Removes the charge with this number, if it is the last one, and gives back up to `units` of it. Returns how
    /// many.
    pub(crate) fn take_back(&mut self, number: u64, units: u64) -> Option<u64> {
        if number != self.last {
            return None;
        }
        let given = self.give_back(number, units);
        self.last -= 1;
        self.len = self.steps[..self.len].partition_point(|step| step.first <= self.last);
        Some(given)
    }

    /// Forgets all charges: nothing can be given back to them.
    pub(crate) fn forget(&mut self) {
        self.len = 0;
    }

    /// Records that the bucket has this level now.
    pub(crate) fn lower(&mut self, level: u64) {
        if let Some(last) = self.steps[..self.len].last_mut()
            && last.level > level
        {
            last.level = level;
            self.merge_down(self.len - 1);
        }
    }

    /// Gives back up to `units` of the charge with this number. Returns how many.
    pub(crate) fn give_back(&mut self, number: u64, units: u64) -> u64 {
        // Most calls settle one of the last charges.
        let step = self.steps[..self.len].iter().rposition(|step| step.first <= number);
        let Some(step) = step.filter(|_| number <= self.last) else { return 0 };
        let given = units.min(self.steps[step].level);
        for step in &mut self.steps[step..self.len] {
            step.level -= given;
        }
        self.merge_down(step);
        given
    }

    /// Lowers the steps before `index` that are above it to its level. They become one step with it.
    fn merge_down(&mut self, index: usize) {
        let level = self.steps[index].level;
        let below = self.steps[..index].iter().rposition(|step| step.level < level);
        let from = below.map_or(0, |below| below + 1);
        if from < index {
            self.steps[from].level = level;
            self.remove(from + 1, index + 1);
        }
    }

    /// Makes one step of the two that differ least, at the lower level.
    fn merge_least(&mut self) {
        let difference = |index: &usize| self.steps[*index].level - self.steps[*index - 1].level;
        let least = (1..self.len).min_by_key(difference).unwrap_or(1);
        self.remove(least, least + 1);
    }

    /// Removes the steps from `from` to `end`: their charges belong to the step before.
    fn remove(&mut self, from: usize, end: usize) {
        self.steps.copy_within(end..self.len, from);
        self.len -= end - from;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum BucketStep {
        Wait(u64),
        Charge(u64),
        /// Lowers an open charge to a part of it.
        Settle(usize, u64),
    }

    fn step() -> impl Strategy<Value = BucketStep> {
        prop_oneof![
            (0_u64..30).prop_map(BucketStep::Wait),
            (1_u64..40).prop_map(BucketStep::Charge),
            (any::<usize>(), any::<u64>())
                .prop_map(|(which, part)| BucketStep::Settle(which, part)),
        ]
    }

    /// Returns the level at `now` of a bucket that drains one unit at a time, with these charges.
    fn replay(charges: &[(u64, u64)], now: u64) -> u64 {
        let (mut level, mut since) = (0_u64, 0);
        for (at, units) in charges {
            level = level.saturating_sub(at - since) + units;
            since = *at;
        }
        level.saturating_sub(now - since)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// The level is never below that of a bucket that was charged the real costs at first. With few charges, the
        /// steps are exact, and the levels are equal.
        #[test]
        fn never_gives_back_too_much(steps in prop::collection::vec(step(), 1..120)) {
            let (mut now, mut level, mut since) = (0, 0_u64, 0);
            let mut levels = LeastLevels::default();
            // The time and the units of each charge.
            let mut charges: Vec<(u64, u64)> = Vec::new();
            // The indices of the charges that are not settled, and their numbers.
            let mut open: Vec<(usize, u64)> = Vec::new();
            for step in steps {
                level = level.saturating_sub(now - since);
                since = now;
                levels.lower(level);
                match step {
                    BucketStep::Wait(time) => now += time,
                    BucketStep::Charge(units) => {
                        level += units;
                        charges.push((now, units));
                        open.push((charges.len() - 1, levels.charge(level)));
                    }
                    BucketStep::Settle(which, part) if !open.is_empty() => {
                        let (index, number) = open.swap_remove(which % open.len());
                        let real = part % (charges[index].1 + 1);
                        level -= levels.give_back(number, charges[index].1 - real);
                        charges[index].1 = real;
                    }
                    BucketStep::Settle(..) => {}
                }
                let exact = replay(&charges, since);
                prop_assert!(level >= exact, "{level} is below {exact}");
                if charges.len() <= MAX_STEPS {
                    prop_assert_eq!(level, exact);
                }
                prop_assert!(levels.len <= MAX_STEPS);
                let steps = &levels.steps[..levels.len];
                prop_assert!(steps.is_sorted_by(|a, b| a.first < b.first && a.level < b.level));
            }
        }
    }
}
