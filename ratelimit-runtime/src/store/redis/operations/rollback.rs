//! Decides several limits whose keys are in different hash slots of a cluster: charges them hash slot by hash slot,
//! and rolls back if one rejects.

use std::mem;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::algorithm::{Op, Outcome, Receipt};
use crate::key::KeyId;
use crate::reply::StoreError;
use crate::store::Charge;
use crate::store::redis::Servers;
use crate::store::redis::scripts::script::ScriptOp;

/// Called with each count to which a rollback has given units back.
pub(crate) type RollbackHook = Arc<dyn Fn(KeyId) + Send + Sync>;

/// The charges of one hash slot, each with its index in the request.
pub(crate) type SlotGroup = Vec<(usize, Arc<Charge>)>;

impl Servers {
    /// Peeks at charges of several hash slots.
    pub(crate) async fn peek_by_slots(
        &self,
        groups: &[SlotGroup],
        by: Instant,
    ) -> Result<Vec<(Outcome, Receipt)>, StoreError> {
        let charges = groups.iter().map(Vec::len).sum();
        let mut replies = vec![(Outcome::UNDECIDED, Receipt::default()); charges];
        for group in groups {
            keep(&mut replies, group, &self.apply_group(Op::Peek.into(), group, by).await?);
        }
        Ok(replies)
    }

    /// Decides charges of several hash slots by `op`: first peeks at every group, then charges group by group. If a
    /// concurrent call takes units in between, gives the charges back. Until then, other calls can be rejected
    /// because of these charges.
    pub(crate) async fn decide_by_slots(
        self: &Arc<Self>,
        op: ScriptOp,
        groups: Vec<SlotGroup>,
        by: Instant,
    ) -> Result<Vec<(Outcome, Receipt)>, StoreError> {
        let mut replies = self.peek_by_slots(&groups, by).await?;
        let mut fits = is_allowed(&replies);
        let mut rollback = Rollback { servers: Arc::clone(self), charged: Vec::new() };
        for group in groups {
            if !fits {
                break;
            }
            let result = self.apply_group(op, &group, by).await;
            fits = result.as_ref().is_ok_and(|group_replies| is_allowed(group_replies));
            if !fits && !rollback.charged.is_empty() {
                // The caller receives the rejection after the rollback, if the deadline allows.
                let _ = timeout_at(by, rollback.start()).await;
            }
            let group_replies = result?;
            keep(&mut replies, &group, &group_replies);
            if fits {
                let charges = group.into_iter().zip(group_replies);
                rollback.charged.extend(charges.map(|((_, charge), (outcome, _))| {
                    let at = outcome.charged_at(&charge.terms);
                    (charge, at)
                }));
            }
        }
        rollback.charged.clear();
        Ok(replies)
    }
}

/// Copies the replies of a group to their places in the request.
fn keep(
    replies: &mut [(Outcome, Receipt)],
    group: &SlotGroup,
    group_replies: &[(Outcome, Receipt)],
) {
    for ((index, _), reply) in group.iter().zip(group_replies) {
        replies[*index] = *reply;
    }
}

fn is_allowed(replies: &[(Outcome, Receipt)]) -> bool {
    replies.iter().all(|(outcome, _)| outcome.is_allowed())
}

/// The charges of a call that is not admitted yet. Gives them back on drop.
struct Rollback {
    servers: Arc<Servers>,
    /// Each charge with its time.
    charged: Vec<(Arc<Charge>, u64)>,
}

impl Rollback {
    /// Gives the charges back in the background, because the deadline of the call may have passed, or the caller
    /// may drop the call. The receiver completes once all charges are given back.
    fn start(&mut self) -> oneshot::Receiver<()> {
        let (done, is_done) = oneshot::channel();
        let (charged, servers) = (mem::take(&mut self.charged), Arc::clone(&self.servers));
        self.servers.background.spawn(async move {
            let by = Instant::now() + servers.deadline;
            let key_ids: Vec<_> = charged.iter().map(|(charge, _)| charge.key_id).collect();
            for (charge, at) in charged {
                // An error here is not reported: the caller receives the reason of the rollback.
                let _ = servers.apply_one(Op::Return { at }, &charge, by).await;
            }
            for key_id in key_ids {
                (servers.on_rollback)(key_id);
            }
            let _ = done.send(());
        });
        is_done
    }
}

impl Drop for Rollback {
    fn drop(&mut self) {
        if !self.charged.is_empty() {
            drop(self.start());
        }
    }
}
