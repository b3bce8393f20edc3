//! Calls that are charged once: an id that was admitted is admitted again without a charge while it is remembered.

use std::collections::HashMap;
use std::time::Duration;

use ratelimit_runtime::{Limit, Part, Rejection};
use support::judge::GrantedCall;

use crate::operation::Cost;
use crate::player::Player;
use crate::trace::Setup;

/// The ids that were admitted.
pub(crate) struct Repeats {
    limit: Limit,
    /// Until when each id is remembered.
    known: HashMap<u64, u64>,
    /// By how much the clocks of two processes differ.
    skew: u64,
}

impl Repeats {
    pub(crate) fn new(setup: &Setup) -> Self {
        let limit = Limit::once("once", Duration::from_micros(setup.period));
        Self { limit, known: HashMap::new(), skew: 2 * setup.skew * setup.tick }
    }

    /// Returns whether an id is remembered; `None` if the clocks of two processes can disagree about it.
    fn knows(&self, id: u64, now: u64) -> Option<bool> {
        let Some(until) = self.known.get(&id) else { return Some(false) };
        let is_certain = now + self.skew < *until || *until + self.skew <= now;
        is_certain.then_some(now < *until)
    }
}

impl Player<'_> {
    /// Decides a call of the limit that has an id.
    pub(crate) async fn once(&mut self, process: usize, cost: Cost, id: u64) {
        let now = self.now();
        let Some(is_known) = self.repeats.knows(id, now) else { return };
        let (main, once) = (self.limit(process), self.repeats.limit);
        let (cost, key) = (cost.of(&main), self.key.clone());
        let request = format!("{key}/{id}");
        let parts = [Part::new(&main, &key, cost), Part::new(&once, &request, 1)];
        let result = self.limiter(process).check_all(&parts).await;
        self.tell(format_args!("p{process}, call {id}, known {is_known}:"));
        if !is_known {
            if result.is_ok() {
                self.repeats.known.insert(id, now + once.period().as_micros() as u64);
            }
            let result = result.map(|decision| (decision, None));
            return self.ended(self.at_once(process, cost, &main), result);
        }
        let (process, granted) = (self.process(process), self.moment());
        let fault = match result {
            Ok(_) if self.is_free[process] => None,
            Ok(_) => {
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
