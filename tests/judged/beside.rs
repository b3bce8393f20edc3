//! Other limits in the same decision: one that counts units beside the limit of a trace, and one that charges the id of
//! a call once.

use std::collections::HashMap;
use std::time::Duration;

use ratelimit_runtime::{Limit, Part, Permit, Rejection};
use support::judge::{Breach, GrantedCall, Judge};

use crate::operation::Cost;
use crate::player::Player;
use crate::trace::Setup;

/// The limit that stands beside the limit of a trace: a window that calls of both limits share.
pub(crate) struct Beside {
    limit: Limit,
    judge: Judge,
    /// The time and the units of each admitted call.
    admitted: Vec<(u64, u64)>,
}

impl Beside {
    pub(crate) fn new(setup: &Setup) -> Self {
        let main = setup.limit("beside", 0);
        let limit = Limit::sliding("beside", 2 * main.capacity(), main.period());
        let judge = Judge::new(&limit, None).with_skew(setup.difference());
        Self { limit, judge, admitted: Vec::new() }
    }

    pub(crate) fn breaches(&self) -> Vec<Breach> {
        self.judge.breaches()
    }

    /// Returns the units that the admitted calls have left, if each counts for a period and so long.
    fn remaining(&self, now: u64, longer: u64) -> u64 {
        let period = self.limit.period().as_micros() as u64 + longer;
        let within = self.admitted.iter().filter(|(at, _)| at + period > now);
        self.limit.threshold().saturating_sub(within.map(|(_, units)| units).sum())
    }
}

/// The ids that were admitted. They are admitted again without a charge while they are remembered.
pub(crate) struct Repeats {
    limit: Limit,
    /// Until when each id is remembered.
    known: HashMap<u64, u64>,
}

impl Repeats {
    pub(crate) fn new(setup: &Setup) -> Self {
        let limit = Limit::once("once", Duration::from_micros(setup.period));
        Self { limit, known: HashMap::new() }
    }
}

impl Player<'_> {
    /// Decides a call of both limits: both are charged, or none is.
    pub(crate) async fn several(&mut self, process: usize, cost: Cost, acquires: bool) {
        let main = self.limit(process);
        let (cost, beside, key) = (cost.of(&main), self.beside.limit, self.key.clone());
        let parts = [Part::new(&main, &key, cost), Part::new(&beside, &key, cost)];
        let result = if acquires {
            self.limiter(process).acquire_all(&parts).await.map(|permits| {
                let mut permits = permits.into_iter();
                let permit = permits.next().expect("of the first part");
                permits.for_each(Permit::keep);
                (permit.decision(), Some(permit))
            })
        } else {
            self.limiter(process).check_all(&parts).await.map(|decision| (decision, None))
        };
        let now = self.now();
        if result.is_ok() {
            self.beside.judge.admitted_between(&beside, (now, now), cost);
            self.beside.admitted.push((now, cost));
        }
        self.decided(process, &main, cost, result);
    }

    /// Returns a fault if the other limit does not have the units of the calls that were admitted: exactly, unless they
    /// are above 1,000.
    pub(crate) async fn missing_beside(&self) -> Option<String> {
        if self.setup.skew > 0 {
            // It does not know the time of each charge.
            return None;
        }
        let peek = self.limiter(0).peek(&self.beside.limit, &self.key, 1).await;
        let (Ok(decision) | Err(Rejection::Limited { decision, .. })) = peek else {
            return Some(format!("{peek:?}"));
        };
        // The store keeps a large charge for a thousandth of the period longer, and two ticks.
        let longer = if self.setup.unit > 1 { self.setup.period / 1_000 + 2 } else { 0 };
        let [least, most] = [longer, 0].map(|longer| self.beside.remaining(self.now(), longer));
        let left = decision.remaining;
        (left < least || left > most)
            .then(|| format!("the other limit has {left} units left, not {least} to {most}"))
    }

    /// Decides a call of the limit that has an id.
    pub(crate) async fn once(&mut self, process: usize, cost: Cost, id: u64) {
        let (now, skew) = (self.now(), self.setup.difference());
        let until = self.repeats.known.get(&id).copied().unwrap_or(0);
        if now + skew >= until && now < until + skew {
            // The clocks of two processes can disagree about it.
            return;
        }
        let (main, once, key) = (self.limit(process), self.repeats.limit, self.key.clone());
        let (cost, request) = (cost.of(&main), format!("{key}/{id}"));
        let parts = [Part::new(&main, &key, cost), Part::new(&once, &request, 1)];
        let result = self.limiter(process).check_all(&parts).await;
        if now >= until {
            if result.is_ok() {
                self.repeats.known.insert(id, now + once.period().as_micros() as u64);
            }
            return self.decided(process, &main, cost, result.map(|decision| (decision, None)));
        }
        let fault = match result {
            Ok(_) if self.is_free[process] => None,
            Ok(_) => {
                let granted = self.moment();
                let call = GrantedCall { process, granted, starts: now, is_ahead: false };
                self.blocks.objects_to(call).then_some("passes a block".to_owned())
            }
            Err(Rejection::CostExceedsCapacity { .. }) => None,
            Err(Rejection::Blocked { .. }) if self.blocks.knows_any() => None,
            Err(rejection) => Some(format!("{rejection:?}")),
        };
        self.verdict.faults.extend(fault.map(|fault| format!("{now}: repeated: {fault}")));
    }
}
