//! Where annotated functions are, to find two whose limits have one name by mistake.
//!
//! The default name of a limit is `crate::module::function`, without the type: a macro on a method
//! cannot see it. Two methods of one name would share their counts in silence. A name that was chosen
//! may be meant to be shared; then two aligns under it are the mistake, for they count apart.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use once_cell::sync::Lazy;

use crate::limit::{Algorithm, Align, Limit};

/// One annotated function with a limit.
#[derive(Debug)]
pub struct Site {
    /// File, line and column.
    position: &'static str,
    /// The name of the limit was written by the user.
    is_named: bool,
    seen: AtomicBool,
}

/// What functions must have in common to be compared.
type SharedName = (&'static str, Algorithm, u64);

/// Its position, and its align.
type Registered = (&'static str, Option<Align>);

static FIRST: Lazy<Mutex<HashMap<SharedName, Registered>>> = Lazy::new(Mutex::default);

impl Site {
    /// The function at `position`, whose limit has the default name.
    #[must_use]
    pub const fn new(position: &'static str) -> Self {
        Self { position, is_named: false, seen: AtomicBool::new(false) }
    }

    /// The function at `position`, whose limit has a name of the user's choice.
    #[must_use]
    pub const fn named(position: &'static str) -> Self {
        Self { position, is_named: true, seen: AtomicBool::new(false) }
    }

    /// Gives the limit back, and warns once when another function has the name of this one by mistake.
    #[must_use]
    #[inline]
    pub fn visit<'a>(&self, limit: &'a Limit) -> &'a Limit {
        if !self.seen.load(Ordering::Relaxed) && !self.seen.swap(true, Ordering::Relaxed) {
            self.register(limit);
        }
        limit
    }

    #[cold]
    fn register(&self, limit: &Limit) {
        let shared = (limit.name(), limit.algorithm(), limit.period_us());
        let here = (self.position, limit.aligned());
        let mut sites = FIRST.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, align) = *sites.entry(shared).or_insert(here);
        drop(sites);
        if first == self.position {
            return;
        }
        if align != limit.aligned() {
            tracing::warn!(
                name = limit.name(),
                first,
                second = self.position,
                "two functions have one rate limit name and count apart, because their `align` differs: \
                 give both the same `align`, or each a `name` of its own"
            );
        } else if !self.is_named {
            tracing::warn!(
                name = limit.name(),
                first,
                second = self.position,
                "two functions share the counts of one rate limit: give each a `name` of its own, or \
                 both the same"
            );
        }
    }
}
