//! The positions of annotated functions, to find limits that share a name by mistake.
//!
//! The default name of a limit is `crate::module::function`. It does not contain the type of a method, because a
//! macro on a method cannot see the type. So two methods with one name would share their counts without a warning.
//! Functions may share a name that the user chose. If their aligns differ, that is a mistake, because they then
//! count separately.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::limit::Limit;
use crate::registry::{self, AnnotatedLimit};

/// An annotated function with a limit.
#[derive(Debug)]
pub struct Site {
    /// The file, the line and the column.
    place: &'static str,
    name: SiteName,
    is_computed: bool,
    visited: AtomicBool,
}

/// Where the name of a limit comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SiteName {
    /// From the path of the function.
    Default,
    /// The user chose it.
    Chosen,
    /// From a constant, which functions share on purpose.
    Constant,
}

impl Site {
    /// Creates the site of a function whose limit has the default name.
    #[must_use]
    pub const fn new(place: &'static str) -> Self {
        Self::with_name(place, SiteName::Default)
    }

    /// Creates the site of a function whose limit has a name that the user chose.
    #[must_use]
    pub const fn named(place: &'static str) -> Self {
        Self::with_name(place, SiteName::Chosen)
    }

    /// Creates the site of a function whose limit is a constant.
    #[must_use]
    pub const fn constant(place: &'static str) -> Self {
        Self::with_name(place, SiteName::Constant)
    }

    /// Returns this site for a limit whose amounts each call computes.
    #[must_use]
    pub const fn computed(mut self) -> Self {
        self.is_computed = true;
        self
    }

    const fn with_name(place: &'static str, name: SiteName) -> Self {
        Self { place, name, is_computed: false, visited: AtomicBool::new(false) }
    }

    /// Returns the limit. Registers it once, and warns if another function shares its name by mistake.
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
        let Self { place, is_computed, .. } = *self;
        let first = registry::add(AnnotatedLimit { limit: limit.clone(), place, is_computed });
        let Some(first) = first.filter(|first| first.place != place) else { return };
        if self.name == SiteName::Constant {
            return;
        }
        let (name, second, is_chosen) = (limit.name(), place, self.name == SiteName::Chosen);
        if first.limit.terms().align() != limit.terms().align() {
            tracing::warn!(
                name,
                first = first.place,
                second,
                "two functions use one rate limit name with different `align`, so they count \
                 separately: set the same `align` on both, or a different `name` on each"
            );
        } else if !is_chosen {
            tracing::warn!(
                name,
                first = first.place,
                second,
                "two functions share the counts of one rate limit: set a different `name` on each, or, \
                 to share the counts, the same `name` on both"
            );
        }
    }
}
