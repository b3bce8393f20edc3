//! What happens beside the calls of one limit: another limit in the same decision, a server that evicts the count, and
//! rules that exempt calls or only observe them.

use ratelimit_runtime::{Limit, Part, Rejection, Rule, RuleSet};
use support::judge::{Breach, Judge, JudgedCall};

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
        let judge = setup.with_exceptions(Judge::new(&limit, None));
        Self { limit, judge, admitted: Vec::new() }
    }

    fn admit(&mut self, at: u64, units: u64) {
        let (charged, starts, decided) = (units, (at, at), at);
        let (threshold, capacity) = (self.limit.threshold(), self.limit.capacity());
        self.judge.admitted(JudgedCall { starts, decided, charged, threshold, capacity });
        self.admitted.push((at, charged));
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

impl Player<'_> {
    /// Decides a call of both limits: both are charged, or none is.
    pub(crate) async fn several(&mut self, process: usize, cost: Cost, acquires: bool) {
        let main = self.limit(process);
        let (cost, beside) = (cost.of(&main), self.beside.limit);
        let key = self.key.clone();
        let parts = [Part::new(&main, &key, cost), Part::new(&beside, &key, cost)];
        let result = if acquires {
            self.limiter(process).acquire_all(&parts).await.map(|permits| {
                let mut permits = permits.into_iter();
                let permit = permits.next().expect("of the first part");
                permits.for_each(ratelimit_runtime::Permit::keep);
                (permit.decision(), Some(permit))
            })
        } else {
            self.limiter(process).check_all(&parts).await.map(|decision| (decision, None))
        };
        let now = self.now();
        if result.is_ok() {
            self.beside.admit(now, cost);
        }
        self.tell(format_args!("p{process}, with another limit:"));
        self.ended(self.at_once(process, cost, &main), result);
    }

    /// The server evicts the count.
    pub(crate) async fn evict(&mut self) {
        if self.fleet.evict(self.name, &self.key) {
            self.tell("the server evicts the count");
            self.lose(None).await;
        }
    }

    /// A rule exempts the calls of a process, or makes their limit a shadow. The judge does not know them.
    pub(crate) async fn free(&mut self, process: usize, shadow: bool) {
        let rule = if shadow { Rule::new().shadow(true) } else { Rule::new().exempt(true) };
        let mut rules = RuleSet::new();
        rules.set(self.name, rule).expect("valid");
        let number = self.process(process);
        (self.is_free[number], self.ruled[number]) = (true, None);
        // Calls that wait leave their line, and may be decided after the next change of the rules.
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.process == number) {
            waiting.is_free = true;
        }
        self.limiter(process).set_rules(rules).expect("valid rules");
        self.tell(format_args!("a rule frees the calls of p{number}"));
        self.collect().await;
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
        let expected = [longer, 0].map(|longer| self.beside.remaining(self.now(), longer));
        let (left, [least, most]) = (decision.remaining, expected);
        (left < least || left > most)
            .then(|| format!("the other limit has {left} units left, not {least} to {most}"))
    }
}
