//! Leases: units of a limit that are charged in advance, in one question to Redis, and spent in this
//! process.
//!
//! Why that never is too much: a unit is spent at most a term after it was charged, measured from when
//! it was asked for, and so what is spent in any period was charged in a period and a term. The store
//! counts leases by a limit that is stricter by that (see [`Limit::leased`]): over a period longer by
//! the term; into a bucket that is smaller by what refills in it. A permit of a fixed window never
//! outlives it.
//!
//! What is not spent goes back by [`Op::Return`]: in any order and however late, the store counts no
//! less than what was spent and is held.
//!
//! Calls take from what is held of their key. When that is not enough, one of them asks for all, and
//! those that come meanwhile wait. When it is refused, there is nothing to lease: for a term, each call
//! asks for itself, as it would without a lease.

mod entry;
mod flight;
mod ledger;

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, timeout, timeout_at};

use self::entry::{Rest, Target};
use self::flight::Flight;
use self::ledger::Joined;
pub(crate) use self::ledger::Leases;
use crate::algorithm::Op;
use crate::background::Background;
use crate::check::{Answer, Check};
use crate::decision::{Answered, Decision, Verdict};
use crate::error::StoreError;
use crate::key::{Key, KeyWriter};
use crate::limit::Limit;
use crate::limiter::RateLimiter;
use crate::question::{Finding, Question};
use crate::rejection::Rejection;
use crate::report::Report;
use crate::store::Store;
use crate::waiting::before;

/// A call waits for a request that is under way for this part of its deadline, and then sends its own.
const PATIENCE: u32 = 16;

/// So many keys are given back at a time.
const TOGETHER: usize = 64;

/// What a caller who waited is told.
enum Landed {
    Units(Permit),
    Refused(Answered),
    Failed(StoreError),
    /// There is nothing to lease: let it ask for itself.
    Nothing,
}

/// Units that were handed out; they come back if nobody takes them.
struct Permit {
    limiter: RateLimiter,
    place: u128,
    decision: Decision,
    units: Option<Rest>,
}

impl Permit {
    fn spend(mut self) -> Decision {
        self.units = None;
        self.decision
    }
}

/// Checks a call under a limit that may be leased.
#[inline]
pub(crate) fn check(
    limiter: &RateLimiter,
    report: Report,
    limit: &Limit,
    key: &dyn Key,
    cost: u32,
) -> Check {
    let local = limiter.local();
    let place = local.place(limit, key);
    if cost > 0
        && let Some(decision) = limiter.leases().spend(place, cost, local.clock().steady())
    {
        return Check::admitted(report, limit, decision);
    }
    let leased = limit.leased();
    let report = report.about(&leased, cost, || local.place(&leased, key));
    let question = question(limiter, place, limit, &leased, key, cost);
    Check::new(report, &leased, question)
}

fn question(
    limiter: &RateLimiter,
    place: u128,
    limit: &Limit,
    leased: &Limit,
    key: &dyn Key,
    cost: u32,
) -> Question {
    if cost == 0 || cost > leased.capacity() {
        return limiter.ask(Op::Decide, leased, key, cost);
    }
    let counted_at = limiter.local().place(leased, key);
    if let Some(answered) = limiter.refused_before(leased, counted_at, cost) {
        return Question::refused(leased, answered);
    }
    let target = Target {
        limit: *leased,
        key: KeyWriter::written(key),
        permits: limit.permits(),
        term_us: limit.term_us(),
    };
    let wanted = Wanted { limiter: limiter.clone(), place, target: Arc::new(target), cost };
    Question::waits(wanted.admitted())
}

/// Says what a check would: what is held counts as left.
pub(crate) fn peek(limiter: &RateLimiter, limit: &Limit, key: &dyn Key, cost: u32) -> Question {
    let place = limiter.local().place(limit, key);
    let question = limiter.ask(Op::Peek, &limit.leased(), key, cost);
    let limiter = limiter.clone();
    Question::waits(async move {
        let mut verdict = question.await?;
        let held = limiter.leases().held(place, limiter.local().clock().steady());
        let decision = &mut verdict.decision;
        decision.remaining = decision.remaining.saturating_add(held).min(decision.limit);
        if held >= cost {
            (decision.allowed, decision.retry_after) = (true, Duration::ZERO);
        }
        Ok(verdict)
    })
}

/// A call for which not enough is held.
struct Wanted {
    limiter: RateLimiter,
    place: u128,
    target: Arc<Target>,
    cost: u32,
}

/// What became of a call that waited.
enum Turn {
    Spent(Decision),
    Refused(Answered),
    Failed(StoreError),
    /// It was asked about alone.
    Asked(Finding),
    /// There was no answer within the deadline.
    Late,
}

impl Wanted {
    async fn admitted(self) -> Finding {
        let Target { limit, key, .. } = &*self.target;
        if Handle::try_current().is_err() {
            return self.limiter.ask(Op::Decide, limit, key, self.cost).await;
        }
        let deadline = self.limiter.deadline();
        let error = match self.decided(Instant::now() + deadline).await {
            Turn::Spent(decision) => return Ok(Verdict::new(limit, decision)),
            Turn::Refused(answer) => {
                let decision = Decision::new(limit.capacity(), answer);
                return Err(Rejection::limited(limit, decision));
            }
            Turn::Asked(finding) => return finding,
            Turn::Failed(error) => error,
            Turn::Late => StoreError::Timeout { deadline },
        };
        let place = self.limiter.local().place(limit, key);
        let answer = self.limiter.fall_back(place, Op::Decide, limit, self.cost, error);
        Question::new(Op::Decide, limit, Answer::ready(answer)).await
    }

    /// Waits for a request of this call or of another. Sends one for this call alone where that would take
    /// too long, or the key is not leased.
    async fn decided(&self, by: Instant) -> Turn {
        let Self { limiter, place, target, cost } = self;
        // A flight that ends with its runtime leaves those of other runtimes to ask again.
        for _ in 0..2 {
            let now = limiter.local().clock().steady();
            let (mut answer, arrival) = match limiter.leases().join(*place, target, *cost, now) {
                Joined::Spent(decision) => return Turn::Spent(decision),
                Joined::Not => break,
                Joined::Waits { answer, arrival, is_first } => {
                    if is_first {
                        Flight::take_off(limiter, *place);
                    }
                    (answer, arrival)
                }
            };
            // One timer at a time: most calls have their answer within the first.
            let mut landed = timeout(limiter.deadline() / PATIENCE, &mut answer).await;
            if landed.is_err() {
                if limiter.leases().is_left_behind(*place, arrival) {
                    break;
                }
                landed = timeout_at(by, answer).await;
            }
            match landed {
                Ok(Ok(Landed::Units(permit))) => return Turn::Spent(permit.spend()),
                Ok(Ok(Landed::Refused(answer))) => return Turn::Refused(answer),
                Ok(Ok(Landed::Failed(error))) => return Turn::Failed(error),
                Ok(Ok(Landed::Nothing)) => break,
                Ok(Err(_)) => {}
                Err(_) => return Turn::Late,
            }
        }
        let asked = limiter.ask(Op::Decide, &target.limit, &target.key, *cost);
        timeout_at(by, asked).await.map_or(Turn::Late, Turn::Asked)
    }
}

impl RateLimiter {
    /// Gives back the units that were charged in advance and not spent. Call it when a process is about to
    /// end, once it takes no more calls: other processes can then use the units at once, and not only when
    /// they have left the window. A limiter that is dropped does the same in the background, if the process
    /// lasts.
    ///
    /// ```
    /// use ratelimit_runtime::RateLimiter;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::embedded();
    /// // serve, and then
    /// limiter.return_leases().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store does not answer; what was not given back then leaves the window by
    /// itself.
    pub fn return_leases(&self) -> Answer<()> {
        let limiter = self.clone();
        Answer::later(async move {
            if Handle::try_current().is_err() {
                return Err(StoreError::NoRuntime);
            }
            let rests = limiter.leases().take_all();
            all(rests.iter().map(|rest| limiter.return_units(rest)).collect()).await
        })
    }

    /// Gives back what is left of a charge.
    fn return_units(&self, Rest { target, units, at }: &Rest) -> Answer<Answered> {
        let op = Op::Return { at: *at };
        self.give_back(self.source(), op, &target.limit, &target.key, *units)
    }

    /// The same in the background.
    fn spawn_return(&self, rest: &Rest) {
        let answer = self.return_units(rest);
        self.background().spawn(async move {
            // Units that are lost on the way leave the window by themselves.
            let _ = answer.await;
        });
    }
}

/// The limiter of these leases is gone.
pub(crate) fn return_to(shared: &dyn Store, leases: &Leases, background: &Background) {
    let rests = leases.take_all();
    leases.changed.notify_one();
    if !rests.is_empty() {
        let answers = rests.iter().map(|Rest { target, units, at }| {
            shared.apply(Op::Return { at: *at }, &target.limit, &target.key, *units)
        });
        let answers = answers.collect();
        background.spawn(async move {
            let _ = all(answers).await;
        });
    }
}

/// Waits for all of them, and gives the first error.
async fn all(answers: Vec<Answer<Answered>>) -> Result<(), StoreError> {
    let mut lanes: Vec<Vec<_>> = (0..TOGETHER.min(answers.len())).map(|_| Vec::new()).collect();
    for (index, answer) in answers.into_iter().enumerate() {
        lanes[index % TOGETHER].push(answer);
    }
    let lane = |answers: Vec<Answer<Answered>>| async {
        let mut all = Ok(());
        for answer in answers {
            let answer = answer.await;
            all = all.and(answer.map(|_| ()));
        }
        all
    };
    let lanes: Vec<_> = lanes.into_iter().map(|answers| tokio::spawn(lane(answers))).collect();
    let mut all = Ok(());
    for lane in lanes {
        // Only a runtime that ends lets a task end before its time.
        all = all.and(lane.await.unwrap_or(Err(StoreError::NoRuntime)));
    }
    all
}

/// Gives back what is idle at the end of its term, as long as anything is held.
fn watch(limiter: &RateLimiter) {
    if !limiter.leases().starts_watch() {
        return;
    }
    let watch = Watch(Arc::clone(limiter.leases()));
    let (clock, weak) = (limiter.local().clock().clone(), limiter.downgrade());
    limiter.background().spawn(async move {
        while let Some(end) = watch.0.next_end() {
            before(clock.sleep_to(end), watch.0.changed.notified()).await;
            let Some(limiter) = weak() else { return };
            let rests = watch.0.take_expired(clock.steady());
            let answers = rests.iter().map(|rest| limiter.return_units(rest)).collect();
            // What is lost stands idle until it leaves the window by itself.
            let _ = all(answers).await;
        }
    });
}

/// The watch may end before its time, with the background thread.
struct Watch(Arc<Leases>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.ends_watch();
    }
}
