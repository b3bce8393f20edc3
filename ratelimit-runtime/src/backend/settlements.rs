//! Corrects charges, and closes and opens keys, where the calls were charged.

use std::sync::Arc;

use super::{Backend, CallDeadline, GivenBack, PendingClosing};
use crate::algorithm::{Correction, OpeningChange, Outcome, Receipt, Verdict};
use crate::key::KeyId;
use crate::limit::{Algorithm, Policy, Scope, Terms};
use crate::local::LocalCharge;
use crate::reply::{Answer, Source, StoreError};
use crate::store::{Charge, SettleError, SettledCharge, Store};

impl Backend {
    /// Returns the units of a charge that `source` has charged: a fallback charges at most the share of this process.
    pub(crate) fn charged_by(&self, source: Source, charge: &Charge) -> u64 {
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
        correction: Correction,
        opening: OpeningChange,
    ) {
        let outcome = self.local.correct(LocalCharge { key_id, terms, cost: 0 }, correction);
        self.notify_settlement(key_id, correction, Some(&outcome), Source::Embedded);
        self.close_here(key_id, terms, opening);
    }

    /// Gives units in flight back to the embedded store.
    #[inline]
    pub(crate) fn release_local(
        &self,
        key_id: KeyId,
        receipt: Receipt,
        units: u64,
        opening: OpeningChange,
    ) {
        self.local.release(key_id, receipt, units);
        self.notify_release(key_id);
        self.close_by(key_id, Algorithm::InFlight, opening);
    }

    /// Changes the opening of a key in this process. With Redis, this is the key of the fallback. Returns whether the
    /// key was closed.
    pub(crate) fn close_here(&self, key_id: KeyId, terms: &Terms, opening: OpeningChange) -> bool {
        self.close_by(key_id, terms.algorithm(), opening)
    }

    fn close_by(&self, key_id: KeyId, algorithm: Algorithm, opening: OpeningChange) -> bool {
        if opening == OpeningChange::None {
            return false;
        }
        let was_closed = self.local.change_opening(key_id, algorithm, opening);
        self.notify_opening_change(key_id, opening);
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
        if !self.is_shared(policy.scope()) {
            return Answer::ready(Ok(was_here));
        }
        let backend = Arc::clone(self);
        Answer::pending(async move {
            let queued = backend.wait_until_closed([charge.key_id]);
            let queued = backend.prepare(&mut CallDeadline::default(), queued).await;
            // A closing that is still queued would close the key again.
            if opening == OpeningChange::Open {
                queued?;
            }
            let settled = SettledCharge { charge, correction: Correction::default(), opening };
            let mut results = backend.settle_shared(std::slice::from_ref(&settled)).await;
            let result = results.pop().ok_or(StoreError::NoRuntime)?;
            let before = result.map_err(|error| error.error().clone())?;
            Ok(matches!(before.verdict, Verdict::Closed { .. }))
        })
    }

    /// Waits until the closings of these keys that this process has queued are made.
    pub(super) async fn wait_until_closed(
        &self,
        key_ids: impl IntoIterator<Item = KeyId>,
    ) -> Result<(), StoreError> {
        match &self.closings {
            Some(closings) => closings.wait_until_closed(key_ids).await,
            None => Ok(()),
        }
    }

    /// Makes the calls of a key wait until it is closed in the shared store, if there is one.
    pub(crate) fn hold_calls(&self, key_id: KeyId) -> Option<PendingClosing> {
        self.closings.as_ref().map(|closings| closings.add(key_id))
    }

    /// Notifies that a key was closed or opened: waiting calls ask again, and leased units of a closed key go back.
    fn notify_opening_change(&self, key_id: KeyId, opening: OpeningChange) {
        match opening {
            OpeningChange::None => return,
            OpeningChange::CloseFor(_) => self.give_backs.notify_closing(key_id),
            OpeningChange::Open => {}
        }
        self.give_backs.notify(GivenBack { key_id, outcome: None, is_reset: false });
    }

    /// Corrects a charge that this process has made, also as a fallback. Returns whether it has.
    pub(crate) fn settle_here(
        &self,
        scope: Scope,
        source: Source,
        charge: &Arc<Charge>,
        correction: Correction,
        opening: OpeningChange,
    ) -> bool {
        let outcome = match self.shared_for(scope) {
            Some(shared) if source == shared.source() => return false,
            Some(_) => {
                let share = charge.share(self.settings.instances);
                self.local.correct((&share).into(), correction)
            }
            None => self.local.correct((&**charge).into(), correction),
        };
        self.notify_settlement(charge.key_id, correction, Some(&outcome), source);
        self.close_here(charge.key_id, &charge.terms, opening);
        true
    }

    /// Returns the group of a charge of the shared store. One request corrects charges of one group.
    pub(crate) fn settle_group(&self, charge: &Charge) -> u16 {
        self.shared.as_ref().map_or(0, |shared| shared.settle_group(charge))
    }

    /// Corrects charges of the shared store, which are of one [group](Self::settle_group).
    pub(crate) async fn settle_shared(
        &self,
        charges: &[SettledCharge],
    ) -> Vec<Result<Outcome, SettleError>> {
        let Some(shared) = &self.shared else { return Vec::new() };
        let results = shared.settle(charges).await;
        for (SettledCharge { charge, correction, opening }, result) in charges.iter().zip(&results)
        {
            if !matches!(result, Err(SettleError::NotExecuted(_))) {
                let outcome = result.as_ref().ok();
                self.notify_settlement(charge.key_id, *correction, outcome, shared.source());
                self.notify_opening_change(charge.key_id, *opening);
            }
        }
        results
    }

    /// Fails if the shared store does not reply to a request that corrects nothing of the count of `charge`.
    pub(crate) async fn try_settle(&self, charge: Arc<Charge>) -> Result<(), StoreError> {
        let (correction, opening) = (Correction::default(), OpeningChange::None);
        let settled = SettledCharge { charge, correction, opening };
        match self.settle_shared(std::slice::from_ref(&settled)).await.pop() {
            Some(Err(SettleError::NotExecuted(error) | SettleError::NoReply(error))) => Err(error),
            Some(Err(SettleError::Replied(_)) | Ok(_)) | None => Ok(()),
        }
    }

    /// Notifies of a charge that was corrected. After a failure, it may have been.
    fn notify_settlement(
        &self,
        key_id: KeyId,
        correction: Correction,
        outcome: Option<&Outcome>,
        source: Source,
    ) {
        if correction.less() > 0 {
            let outcome = outcome.map(|outcome| (source, *outcome));
            self.give_backs.notify(GivenBack { key_id, outcome, is_reset: false });
        } else {
            // A debt makes the wait longer.
            self.give_backs.rejections.forget(key_id);
        }
    }
}
