//! What was decided about a request, wherever in it: the checks that end while a request is handled
//! are noted, so that the response can tell of them; and what a refusal in it needs to be answered.

use std::cell::RefCell;
use std::mem;
use std::time::Duration;

use tokio::task::futures::TaskLocalFuture;

use super::rejected::Asked;
use crate::decision::{Decision, Source, Verdict};
use crate::ever::Ever;
use crate::limit::{Limit, Quota};
use crate::question::Finding;
use crate::rejection::Rejection;

tokio::task_local! {
    static SEEN: RefCell<Seen>;
}

/// That a request was handled.
static HANDLES: Ever = Ever::new();

/// A request being handled, with what was decided about it.
pub(crate) type Recorded<F> = TaskLocalFuture<RefCell<Seen>, F>;

/// How many limits are noted without an allocation.
const FEW: usize = 2;

/// The limits that a request came across, in that order, each with its latest decision.
#[derive(Clone, Default)]
pub(crate) struct Seen {
    pub(crate) asked: Asked,
    few: [Option<Entry>; FEW],
    more: Vec<Entry>,
}

/// A limit as clients are told of it.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) quota: Quota,
    pub(crate) state: Option<State>,
}

/// What is left of a limit.
#[derive(Clone, Copy)]
pub(crate) struct State {
    pub(crate) remaining: u32,
    /// For so many seconds; of a refusal, until the same call can be admitted.
    pub(crate) seconds: u32,
    pub(crate) refused: bool,
}

impl Seen {
    /// Of a request that came across none yet.
    pub(crate) fn new(asked: Asked) -> Self {
        Self { asked, ..Self::default() }
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> + Clone {
        self.few.iter().flatten().chain(&self.more)
    }

    pub(crate) fn note(&mut self, finding: &Finding) {
        match finding {
            Ok(Verdict { name, quota, decision })
            | Err(Rejection::Limited { name, quota, decision })
                // Who was admitted because nobody could decide knows nothing of what is left.
                if !(decision.source == Source::Fallback && decision.reset_after.is_zero()) =>
            {
                self.add(Entry { name, quota: *quota, state: Some(State::of(decision)) });
            }
            _ => {}
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries().count()
    }

    /// How many limits of the name of the one that refused came before it.
    pub(crate) fn namesakes(&self, rejection: &Rejection) -> usize {
        let Rejection::Limited { name, quota, .. } = rejection else { return 0 };
        let before = self.entries().take_while(|it| it.identity() != (*name, *quota));
        before.filter(|it| it.name == *name).count()
    }

    /// Notes a limit that has yet to speak. A shadow is for operators, not for clients.
    pub(crate) fn expect(&mut self, limit: &Limit) {
        if !limit.is_shadow() {
            self.add(Entry { name: limit.name(), quota: limit.quota(), state: None });
        }
    }

    fn add(&mut self, entry: Entry) {
        let same = |it: &&mut Entry| it.identity() == entry.identity();
        if let Some(known) = self.few.iter_mut().flatten().chain(&mut self.more).find(same) {
            known.state = entry.state.or(known.state);
        } else if let Some(free) = self.few.iter_mut().find(|it| it.is_none()) {
            *free = Some(entry);
        } else {
            self.more.push(entry);
        }
    }

    /// Runs `work`, and notes the checks that end in it.
    pub(crate) fn during<T>(&mut self, work: impl FnOnce() -> T) -> T {
        HANDLES.done();
        SEEN.sync_scope(RefCell::new(mem::take(self)), || {
            let done = work();
            *self = SEEN.with(RefCell::take);
            done
        })
    }

    /// Handles a request, and notes the checks that end in it.
    pub(crate) fn throughout<F: Future>(self, future: F) -> Recorded<F> {
        HANDLES.done();
        SEEN.scope(RefCell::new(self), future)
    }
}

impl Entry {
    /// What makes it the same limit.
    pub(crate) fn identity(&self) -> (&'static str, Quota) {
        (self.name, self.quota)
    }
}

impl State {
    fn of(decision: &Decision) -> Self {
        let span = if decision.allowed { decision.reset_after } else { decision.retry_after };
        let refused = !decision.allowed;
        Self { remaining: decision.remaining, seconds: seconds(span), refused }
    }
}

/// Whole seconds, rounded up.
pub(crate) fn seconds(span: Duration) -> u32 {
    u32::try_from(span.as_nanos().div_ceil(1_000_000_000)).unwrap_or(u32::MAX)
}

/// Whether a request is being handled.
#[inline]
pub(crate) fn notes() -> bool {
    HANDLES.is_done() && SEEN.try_with(|_| ()).is_ok()
}

/// A check has ended.
pub(crate) fn note(finding: &Finding) {
    let _ = SEEN.try_with(|seen| seen.borrow_mut().note(finding));
}

/// A rejection becomes a response: what is known of the request that it refuses, if one is being
/// handled, which is then told of it wherever it was decided.
pub(crate) fn refused(rejection: &Rejection) -> Option<Seen> {
    let noted = |seen: &RefCell<Seen>| {
        seen.borrow_mut().note(&Err(rejection.clone()));
        seen.borrow().clone()
    };
    SEEN.try_with(noted).ok()
}

/// Limits are asked about together: one of them will speak, and the others are to be known too.
pub(crate) fn together<'a>(limits: impl Iterator<Item = &'a Limit>) {
    let _ = SEEN.try_with(|seen| {
        let mut seen = seen.borrow_mut();
        limits.for_each(|limit| seen.expect(limit));
    });
}
