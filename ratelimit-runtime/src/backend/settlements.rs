//! Corrects charges, and blocks, unblocks and resets keys, where the calls were charged.

use std::future::ready;
use std::sync::Arc;

use tokio::time::Instant;

use super::Backend;
use crate::algorithm::{BlockChange, Charged, Correction, Outcome, Receipt};
use crate::background::is_in_runtime;
use crate::clock::complete_by;
use crate::key::KeyId;
use crate::limit::{OnError, Policy, Scope};
use crate::local::LocalCharge;
use crate::owner::{Owner, ended};
use crate::reply::{Answer, Source, StoreError};
use crate::report;
use crate::store::{Charge, CorrectedCharge};

impl Backend {
    /// Returns the units of a charge that `source` has charged: a fallback charges at most the share of this process.
    pub(crate) fn charged_by(&self, source: Source, charge: &Charge) -> u64 {
        match source {
            Source::Fallback => charge.share(self.settings.instances).cost,
            _ => charge.cost,
        }
    }

    /// Completes once the embedded store no longer counts units in flight.
    pub(crate) async fn lost_here(&self, key_id: KeyId, receipt: Receipt) {
        loop {
            // Receives notifications from now on.
            let changed = self.in_flight_changed.notified();
            if !self.holds_here(key_id, receipt) {
                return;
            }
            changed.await;
        }
    }

    /// Returns whether the embedded store still counts units in flight.
    pub(crate) fn holds_here(&self, key_id: KeyId, receipt: Receipt) -> bool {
        receipt.birth == 0 || self.local.holds(key_id, receipt)
    }

    /// Settles a charge that `source` has made.
    pub(crate) fn settle(
        &self,
        scope: Scope,
        source: Source,
        charge: &Arc<Charge>,
        mut correction: Correction,
        block: BlockChange,
    ) {
        if source == Source::Redis {
            self.change_here(charge, block);
        } else {
            self.correct_here(source, charge, correction, block);
            // The key of a fallback is also blocked on Redis, which may be back.
            correction = Correction::default();
        }
        if let Some(owner) = self.owner_for(scope) {
            owner.settle(CorrectedCharge { charge: Arc::clone(charge), correction, block });
        }
    }

    /// Gives a charge back to `source`, the store that has made it.
    pub(crate) fn give_back(
        &self,
        source: Source,
        charge: Arc<Charge>,
        charged: Charged,
    ) -> Answer<Outcome> {
        let Some(owner) = self.owner.as_ref().filter(|_| source == Source::Redis) else {
            return Box::pin(ready(Ok(self.give_back_here(source, &charge, charged))));
        };
        if let (Charged::By(receipt), Some(_)) = (charged, charge.statement) {
            // A grant of units in flight that no call has taken.
            drop(owner.granted(&charge, charge.cost, receipt));
            return Box::pin(ready(Ok(Outcome::UNDECIDED)));
        }
        owner.give_back(charge, charged)
    }

    /// Gives units back to the newest charges of a count, for a caller. If the shared store fails, applies `on_error`.
    pub(crate) fn credit(
        self: &Arc<Self>,
        policy: Policy,
        charge: Arc<Charge>,
    ) -> Answer<(Outcome, Source)> {
        let Some(owner) = self.owner_for(policy.scope).map(Arc::clone) else {
            let outcome = self.give_back_here(Source::Embedded, &charge, Charged::Newest);
            return Box::pin(ready(Ok((outcome, Source::Embedded))));
        };
        self.answer(move |backend| async move {
            let correction = Correction::give_back(Charged::Newest, charge.cost);
            let corrected = CorrectedCharge::by(Arc::clone(&charge), correction);
            match backend.in_time(owner.correct(corrected)).await {
                Ok(outcome) => Ok((outcome, Source::Redis)),
                Err(_) if backend.on_error(policy) == OnError::Local => {
                    let source = Source::Fallback;
                    Ok((backend.give_back_here(source, &charge, Charged::Newest), source))
                }
                Err(error) => Err(error),
            }
        })
    }

    fn give_back_here(&self, source: Source, charge: &Charge, charged: Charged) -> Outcome {
        let correction = Correction::give_back(charged, self.charged_by(source, charge));
        self.correct_here(source, charge, correction, BlockChange::None)
    }

    /// Corrects a count of the embedded store, which `source` has charged, and blocks or unblocks its key. Returns the
    /// outcome of the correction.
    fn correct_here(
        &self,
        source: Source,
        charge: &Charge,
        correction: Correction,
        block: BlockChange,
    ) -> Outcome {
        let terms = match source {
            Source::Fallback => charge.terms.share(self.settings.instances),
            _ => charge.terms,
        };
        let local = LocalCharge { key_id: charge.key_id, terms: &terms, cost: 0 };
        let outcome = self.local.correct(local, correction);
        self.notices.corrected(charge.key_id, correction);
        self.change_here(charge, block);
        report::count(report::DEBT, terms.identity.name, correction.more());
        outcome
    }

    /// Blocks, unblocks or resets a key: in this process at once, then in the shared store. Returns whether the key was
    /// blocked; of a reset, whether there was a count.
    pub(crate) fn change_key(
        self: &Arc<Self>,
        policy: Policy,
        charge: Arc<Charge>,
        block: BlockChange,
    ) -> Answer<bool> {
        let Some(owner) = self.owner_for(policy.scope).map(Arc::clone) else {
            return Box::pin(ready(Ok(self.change_here(&charge, block))));
        };
        let algorithm = charge.terms.identity.algorithm;
        let was_here = match block {
            // Lines and the cache of rejections learn of a reset once it is made.
            BlockChange::Reset => self.local.change_block(charge.key_id, algorithm, block),
            _ => self.change_here(&charge, block),
        };
        self.answer(move |backend| async move {
            let changed = owner.correct(CorrectedCharge::block(charge, block));
            let result = backend.in_time(changed).await;
            if block != BlockChange::Reset {
                // A block that was still waiting is not sent any more.
                return result.map(|it| was_here || it.is_blocked());
            }
            backend.in_flight_changed.notify_waiters();
            result.map(|outcome| outcome.is_allowed() || was_here)
        })
    }

    /// Blocks, unblocks or resets a key in this process. With Redis, this is the key of the fallback.
    fn change_here(&self, charge: &Charge, block: BlockChange) -> bool {
        if block == BlockChange::None {
            return false;
        }
        let algorithm = charge.terms.identity.algorithm;
        let was_here = self.local.change_block(charge.key_id, algorithm, block);
        self.in_flight_changed.notify_waiters();
        self.notices.changed(charge.key_id, block);
        was_here
    }

    /// Completes what the owner does for a caller, within one deadline.
    pub(super) async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let result = complete_by(Instant::now() + self.settings.deadline, work).await;
        result.unwrap_or_else(|| Err(self.too_late()))
    }

    /// Returns the error of work that [`complete_by`] has not completed: if there is no runtime, the thread of the
    /// limiter could not start.
    pub(crate) fn too_late(&self) -> StoreError {
        let deadline = self.settings.deadline;
        if is_in_runtime() { StoreError::Timeout { deadline } } else { ended() }
    }

    fn owner_for(&self, scope: Scope) -> Option<&Arc<Owner>> {
        self.owner.as_ref().filter(|_| scope == Scope::Global)
    }
}
