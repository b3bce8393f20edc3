//! A question to the store on behalf of all who wait for a key: a task of its own, so that nothing is
//! lost with a caller who gives up.

use super::entry::{Ask, Given, Rest, What};
use super::{Landed, Permit, watch};
use crate::decision::Answered;
use crate::error::StoreError;
use crate::limiter::RateLimiter;

pub(super) struct Flight {
    limiter: RateLimiter,
    place: u128,
    ended: bool,
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
            let Some(Ask { target, size, rest }) = ask else { return };
            if let Some(rest) = rest {
                self.limiter.spawn_return(&rest);
            }
            let sent = self.now();
            let answer = self.limiter.ask_lease(&target.limit, &target.key, size).await;
            self.ended = answer.as_ref().is_ok_and(|answered| !answered.outcome.allowed);
            self.land(size, sent, answer);
            if self.ended {
                return;
            }
        }
    }

    fn land(&self, size: u32, sent: u64, answer: Result<Answered, StoreError>) {
        let (leases, now) = (self.limiter.leases(), self.now());
        match answer {
            Ok(answered) if answered.outcome.allowed => {
                let (given, rest) = leases.charged(self.place, size, sent, now, answered.outcome);
                self.hand_out(given);
                if let Some(rest) = rest {
                    self.limiter.spawn_return(&rest);
                }
            }
            Ok(refusal) => self.hand_out(leases.refused(self.place, size, now, refusal)),
            Err(error) => self.hand_out(leases.failed(self.place, &error)),
        }
        watch(&self.limiter);
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
                What::Nothing => Landed::Nothing,
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
