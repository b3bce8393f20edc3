//! [`Route`]: the route of a request as a key, in axum and in actix.

use std::fmt;

use crate::key::{Key, KeyWriter};

/// The route of a request as a key: the template that matches the path, such as `/users/{id}`. The parameters in the
/// path are not part of it. All requests without a route share one key. `route` of [`axum`](super::axum) and of
/// [`actix`](super::actix) returns it.
#[derive(Clone, Debug)]
pub struct Route(pub(super) String);

impl Route {
    /// Returns the template; empty for a request without a route.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Key for Route {
    fn write(&self, out: &mut KeyWriter<'_>) {
        out.bytes(self.as_str().as_bytes());
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
