//! Where annotated functions are, to find two that count under one name by mistake.
//!
//! The default name of a limit is `crate::module::function`, without the type: a macro on a method
//! cannot see it. Two methods of one name would share their counts in silence.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use once_cell::sync::Lazy;

use crate::limit::{Algorithm, Limit};

/// One function whose limit has the default name.
#[derive(Debug)]
pub struct Site {
    /// File, line and column.
    place: &'static str,
    seen: AtomicBool,
}

/// What functions must share to share their counts.
type Count = (&'static str, Algorithm, u64);

static PLACES: Lazy<Mutex<HashMap<Count, &'static str>>> = Lazy::new(Mutex::default);

impl Site {
    /// The function at `place`.
    #[must_use]
    pub const fn new(place: &'static str) -> Self {
        Self { place, seen: AtomicBool::new(false) }
    }

    /// Gives the limit back, and says once when another function counts under the name of this one.
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
        let count = (limit.name(), limit.algorithm(), limit.period_us());
        let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
        let other = *places.entry(count).or_insert(self.place);
        if other != self.place {
            tracing::warn!(
                name = limit.name(),
                first = other,
                second = self.place,
                "two functions share the counts of one rate limit: give each a `name` of its own, or \
                 both the same"
            );
        }
    }
}
