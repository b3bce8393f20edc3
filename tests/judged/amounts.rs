//! The amounts of calls: as their limits say, as computed for a call, or as a rule says.

use ratelimit_runtime::{Limit, Rule, RuleSet};

use crate::player::{Player, show};

impl Player<'_> {
    /// Returns the limit with the amounts that are in force for the calls of a process.
    pub(crate) fn limit(&self, process: usize) -> Limit {
        self.setup.limit(self.name, self.ruled[self.process(process)].unwrap_or(self.amounts))
    }

    /// Other amounts are in force for the next calls.
    pub(crate) fn change(&mut self, amounts: usize) {
        self.amounts = amounts % self.setup.amounts.len();
        let limit = self.setup.limit(self.name, self.amounts);
        self.tell(format_args!("the amounts are {}", show(&limit)));
    }

    /// A rule sets the amounts of the limit in one process.
    pub(crate) async fn rule(&mut self, process: usize, amounts: usize) {
        let amounts = amounts % self.setup.amounts.len();
        let number = self.process(process);
        (self.is_free[number], self.ruled[number]) = (false, Some(amounts));
        let amounts = self.setup.limit(self.name, amounts);
        let mut waits = false;
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.process == number) {
            waiting.limits.push(amounts);
            waits = true;
        }
        if waits {
            // These calls can reserve moments under it, also if they are dropped later.
            self.in_force(self.now(), &amounts);
        }
        let rule = Rule::new().threshold(amounts.threshold()).burst(amounts.capacity());
        let mut rules = RuleSet::new();
        rules.set(self.name, rule).expect("valid");
        self.limiter(process).set_rules(rules).expect("valid rules");
        self.tell(format_args!("a rule of p{number}: {}", show(&amounts)));
        self.collect().await;
    }
}
