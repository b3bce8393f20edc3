//! A question to the store on behalf of all who wait for a key: a task of its own, so that nothing is
//! lost with a caller who gives up.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use super::ledger::{Ask, Given, Rest, What};
use super::{Landed, Permit, watch};
use crate::decision::Answered;
use crate::error::StoreError;
use crate::limiter::RateLimiter;

pub(super) struct Flight {
    limiter: RateLimiter,
    place: u128,
    ended: bool,
}

/// What the store said to a question of so many units, sent then.
struct Answer {
    size: u32,
    sent: u64,
    says: Result<Answered, StoreError>,
}

/// A flight ends with its runtime as well.
impl Drop for Flight {
    fn drop(&mut self) {
        if !self.ended {
            self.limiter.leases().abandoned(self.place);
        }
    }
}

impl Flight {
    /// Asks for those that wait for a key, until nobody does.
    pub(super) fn take_off(limiter: &RateLimiter, place: u128) {
        tokio::spawn(Self { limiter: limiter.clone(), place, ended: false }.fly());
    }

    async fn fly(mut self) {
        loop {
            let (given, ask) = self.limiter.leases().board(self.place, self.now());
            self.ended = ask.is_none();
            self.hand_out(given);
            let Some(mut ask) = ask else { return };
            let rest = ask.rest.take();
            let returned = async {
                if let Some(rest) = rest {
                    // What is lost stands idle until it leaves the window by itself.
                    let _ = self.limiter.return_units(&rest).await;
                }
            };
            let landing = both(returned, self.ask(&ask)).await;
            self.land(&ask, landing);
        }
    }

    /// Asks for what is wanted; for as much as there is when that is refused; and at last for what the
    /// first needs, so that a refusal is one of that.
    async fn ask(&self, ask: &Ask) -> Answer {
        let (mut size, mut has_asked_for_less) = (ask.size, false);
        loop {
            let sent = self.now();
            let answer = self.limiter.ask_lease(&ask.target.limit, &ask.target.key, size).await;
            match &answer {
                Ok(refusal) if !refusal.outcome.allowed && size > ask.own => {
                    let left = refusal.outcome.remaining.clamp(ask.own, size - 1);
                    size = if has_asked_for_less { ask.own } else { left };
                    has_asked_for_less = true;
                }
                _ => return Answer { size, sent, says: answer },
            }
        }
    }

    fn land(&self, ask: &Ask, Answer { size, sent, says }: Answer) {
        let leases = self.limiter.leases();
        match says {
            Ok(answered) if answered.outcome.allowed => {
                let (given, rest) =
                    leases.charged(self.place, size, sent, self.now(), answered.outcome);
                self.hand_out(given);
                if let Some(rest) = rest {
                    self.limiter.spawn_return(&rest);
                }
                watch(&self.limiter);
            }
            Ok(refusal) => self.hand_out(leases.refused(self.place, ask.own, refusal)),
            Err(error) => self.hand_out(leases.failed(self.place, &error)),
        }
    }

    /// Gives callers what is theirs. What those that have left do not take comes back.
    fn hand_out(&self, given: Vec<Given>) {
        for Given { to, what } in given {
            let _ = to.send(match what {
                What::Units { decision, units } => Landed::Units(Permit {
                    limiter: self.limiter.clone(),
                    place: self.place,
                    decision,
                    units: Some(units),
                }),
                What::Refusal(answer) => Landed::Refused(answer),
                What::Failure(error) => Landed::Failed(error),
            });
        }
    }

    fn now(&self) -> u64 {
        self.limiter.local().clock().steady()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(Rest { target, units, at }) = self.units.take() else { return };
        if !self.limiter.leases().put_back(self.place, units, at) {
            self.limiter.spawn_return(&Rest { target, units, at });
        }
    }
}

/// Does both at a time, the first one first, and gives what the second one does.
async fn both<T>(first: impl Future<Output = ()>, second: impl Future<Output = T>) -> T {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut is_done, mut answer) = (false, None);
    poll_fn(|context| {
        is_done = is_done || first.as_mut().poll(context).is_ready();
        if answer.is_none()
            && let Poll::Ready(done) = second.as_mut().poll(context)
        {
            answer = Some(done);
        }
        match answer.take_if(|_| is_done) {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        }
    })
    .await
}
