//! The positions of annotated functions, to find limits that share a name by mistake.
//!
//! The default name of a limit is `crate::module::function`. It does not contain the type of a method, because a
//! macro on a method cannot see the type. So two methods with one name would share their counts without a warning.
//! Functions may share a name that the user chose. If their aligns differ, that is a mistake, because they then
//! count separately.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use once_cell::sync::Lazy;

use crate::limit::{Algorithm, Align, Limit, Name, Period};

/// An annotated function with a limit.
#[derive(Debug)]
pub struct Site {
    /// The file, the line and the column.
    position: &'static str,
    /// Whether the user chose the name of the limit.
    is_named: bool,
    visited: AtomicBool,
}

/// A name, an algorithm and a period. Functions that agree on these share a name.
type SharedName = (Name, Algorithm, Period);

/// The position of a function, and the align of its limit.
type Registration = (&'static str, Option<Align>);

/// The first registration of each name.
static FIRST: Lazy<Mutex<HashMap<SharedName, Registration>>> = Lazy::new(Mutex::default);

impl Site {
    /// Creates the site of a function whose limit has the default name.
    #[must_use]
    pub const fn new(position: &'static str) -> Self {
        Self { position, is_named: false, visited: AtomicBool::new(false) }
    }

    /// Creates the site of a function whose limit has a name that the user chose.
    #[must_use]
    pub const fn named(position: &'static str) -> Self {
        Self { position, is_named: true, visited: AtomicBool::new(false) }
    }

    /// Returns the limit, and warns once if another function shares its name by mistake.
    #[must_use]
    #[inline]
    pub fn visit<'a>(&self, limit: &'a Limit) -> &'a Limit {
        if !self.visited.load(Ordering::Relaxed) && !self.visited.swap(true, Ordering::Relaxed) {
            self.register(limit);
        }
        limit
    }

    #[cold]
    fn register(&self, limit: &Limit) {
        let terms = limit.terms();
        let shared = (terms.name().clone(), terms.algorithm(), terms.period());
        let here = (self.position, terms.align());
        let mut sites = FIRST.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, align) = *sites.entry(shared).or_insert(here);
        drop(sites);
        if first == self.position {
            return;
        }
        if align != terms.align() {
            tracing::warn!(
                name = limit.name(),
                first,
                second = self.position,
                "two functions use one rate limit name with different `align`, so they count \
                 separately: set the same `align` on both, or a different `name` on each"
            );
        } else if !self.is_named {
            tracing::warn!(
                name = limit.name(),
                first,
                second = self.position,
                "two functions share the counts of one rate limit: set a different `name` on each, or, \
                 to share the counts, the same `name` on both"
            );
        }
    }
}
