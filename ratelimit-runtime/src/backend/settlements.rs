//! Corrects charges, and closes and opens keys, where the calls were charged.

use std::sync::Arc;

use super::{Backend, GivenBack, PendingClosing};
use crate::algorithm::{OpeningChange, Outcome, Settlement, Verdict};
use crate::key::KeyId;
use crate::limit::{Policy, Terms};
use crate::reply::{Answer, Source, StoreError};
use crate::store::embedded::LocalCharge;
use crate::store::{Charge, SettledCharge, Store};

impl Backend {
    /// Returns the units of a charge that `source` has charged: a fallback charges at most the share of this process.
    pub(crate) fn charged_by(&self, source: Source, charge: &Charge) -> u32 {
        match source {
            Source::Fallback => charge.share(self.settings.instances).cost,
            _ => charge.cost,
        }
    }

    /// Corrects a charge of the embedded store.
    pub(crate) fn settle_local(
        &self,
        key_id: KeyId,
        terms: &Terms,
        settlement: Settlement,
        opening: OpeningChange,
    ) {
        let outcome = self.local.settle_one(LocalCharge { key_id, terms, cost: 0 }, settlement);
        self.observe_settlement(key_id, settlement, Some(&outcome), self.local.source());
        self.close_here(key_id, terms, opening);
    }

    /// Changes the opening of a key in this process. With Redis, this is the key of the fallback. Returns whether the
    /// key was closed.
    pub(crate) fn close_here(&self, key_id: KeyId, terms: &Terms, opening: OpeningChange) -> bool {
        if opening == OpeningChange::None {
            return false;
        }
        let was_closed = self.local.change_opening(terms, key_id, opening);
        self.observe_opening_change(key_id, opening);
        was_closed
    }

    /// Closes or opens a key: in this process at once, then in the shared store. Returns whether the key was closed.
    pub(crate) fn close(
        self: &Arc<Self>,
        policy: Policy,
        charge: Arc<Charge>,
        opening: OpeningChange,
    ) -> Answer<bool> {
        let was_here = self.close_here(charge.key_id, &charge.terms, opening);
        if !self.is_shared(policy) {
            return Answer::ready(Ok(was_here));
        }
        let backend = Arc::clone(self);
        Answer::pending(async move {
            // What this process has queued comes first. If it takes too long, the request shows why.
            let key_ids = std::iter::once(charge.key_id);
            let _ = backend.closings.wait_until_closed(key_ids, backend.deadline() / 2).await;
            let settled = SettledCharge { charge, settlement: Settlement::default(), opening };
            let mut results = backend.settle_shared(vec![settled]).await;
            let before = results.pop().unwrap_or(Err(StoreError::NoRuntime))?;
            Ok(matches!(before.verdict, Verdict::Closed { .. }))
        })
    }

    /// Makes the calls of a key wait until it is closed in the shared store.
    pub(crate) fn hold_calls(&self, key_id: KeyId) -> PendingClosing {
        self.closings.add(key_id)
    }

    /// Observes that a key was closed or opened: waiting calls ask again.
    fn observe_opening_change(&self, key_id: KeyId, opening: OpeningChange) {
        if opening != OpeningChange::None {
            self.give_backs.observe(GivenBack { key_id, end: None, is_reset: false });
        }
    }

    /// Corrects a charge that this process has made, also as a fallback. Returns whether it has.
    pub(crate) fn settle_here(
        &self,
        policy: Policy,
        source: Source,
        charge: &Arc<Charge>,
        settlement: Settlement,
        opening: OpeningChange,
    ) -> bool {
        let outcome = match self.shared_for(policy) {
            Some(shared) if source == shared.source() => return false,
            Some(_) => {
                let share = charge.share(self.settings.instances);
                self.local.settle_one((&share).into(), settlement)
            }
            None => self.local.settle_one((&**charge).into(), settlement),
        };
        self.observe_settlement(charge.key_id, settlement, Some(&outcome), source);
        self.close_here(charge.key_id, &charge.terms, opening);
        true
    }

    /// Corrects charges of the shared store.
    pub(crate) async fn settle_shared(
        &self,
        charges: Vec<SettledCharge>,
    ) -> Vec<Result<Outcome, StoreError>> {
        let Some(shared) = &self.shared else { return Vec::new() };
        let results = shared.settle(charges.clone()).await;
        let observe = |(SettledCharge { charge, settlement, opening }, result): (&_, _)| {
            let result: Result<Outcome, StoreError> = result;
            let outcome = result.as_ref().ok();
            self.observe_settlement(charge.key_id, *settlement, outcome, shared.source());
            self.observe_opening_change(charge.key_id, *opening);
            result
        };
        charges.iter().zip(results).map(observe).collect()
    }

    /// Observes a charge that was corrected. After a failure, it may have been.
    fn observe_settlement(
        &self,
        key_id: KeyId,
        settlement: Settlement,
        outcome: Option<&Outcome>,
        source: Source,
    ) {
        if settlement.less() > 0 {
            let end = outcome.map(|outcome| (source, outcome.clock + outcome.reset_us));
            self.give_backs.observe(GivenBack { key_id, end, is_reset: false });
        } else {
            // A debt makes the wait longer.
            self.give_backs.rejections.forget(key_id);
        }
    }
}
