//! Several limits of keys in different slots: charged one after the other, and given back if one refuses.

use std::mem;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::Servers;
use super::batch::Asked;
use crate::algorithm::Op;
use crate::decision::Verdict;
use crate::error::StoreError;
use crate::store::OnReturn;

impl Servers {
    /// Answers limits that no one script can: first asks all of them, then charges one group after
    /// the other. If another call was faster in between, what was charged is given back; until then
    /// calls may have been rejected for it.
    pub(super) async fn decide_by_slots(
        self: &Arc<Self>,
        groups: Vec<Vec<Asked>>,
        on_return: OnReturn,
        by: Instant,
    ) -> Result<Verdict, StoreError> {
        let mut hardest: Option<Verdict> = None;
        for group in &groups {
            let (verdict, _) = self.decide(Op::Peek, group, by).await?;
            hardest = Some(hardest.map_or(verdict, |hardest| hardest.harder(verdict)));
        }
        if let Some(refused) = hardest.filter(|hardest| !hardest.decision.allowed) {
            return Ok(refused);
        }
        let mut hardest: Option<Verdict> = None;
        let mut charged = Charged { servers: Arc::clone(self), charges: Vec::new(), on_return };
        for group in groups {
            let answer = self.decide(Op::Decide, &group, by).await;
            if !answer.as_ref().is_ok_and(|(verdict, _)| verdict.decision.allowed) {
                // As far as there is time: the caller is answered when nothing is charged any more.
                if !charged.charges.is_empty() {
                    let _ = timeout_at(by, charged.give_back()).await;
                }
                return answer.map(|(verdict, _)| verdict);
            }
            let (verdict, clock) = answer?;
            charged.charges.extend(group.into_iter().map(|part| (part, clock)));
            hardest = Some(hardest.map_or(verdict, |hardest| hardest.harder(verdict)));
        }
        charged.charges.clear();
        hardest.ok_or(StoreError::NoLimits)
    }
}

/// What a call has charged that may still fail. It is given back on drop.
struct Charged {
    servers: Arc<Servers>,
    /// With the time of each charge.
    charges: Vec<(Asked, u64)>,
    /// Called once, when all is given back.
    on_return: OnReturn,
}

impl Charged {
    /// Gives back in the background: the time of the caller may be over, and the caller may leave. The
    /// receiver completes when all is given back.
    fn give_back(&mut self) -> oneshot::Receiver<()> {
        let (done, is_done) = oneshot::channel();
        let (charges, servers) = (mem::take(&mut self.charges), Arc::clone(&self.servers));
        let on_return = mem::replace(&mut self.on_return, Box::new(|| {}));
        self.servers.background.spawn(async move {
            let by = Instant::now() + servers.deadline;
            for (part, at) in charges {
                // The caller gets the failure that led here.
                let _ = servers.ask(Op::Return { at }, part, by).await;
            }
            on_return();
            let _ = done.send(());
        });
        is_done
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        if !self.charges.is_empty() {
            drop(self.give_back());
        }
    }
}
