//! [`Route`]: the route of a request as a key, in axum and in actix.

use std::fmt;

use crate::key::{Key, KeyWriter};

/// The route of a request as a key: the template that matches the path, such as `/users/{id}`. The parameters in the
/// path are not part of it. All requests without a route share one key. `route` of [`axum`](super::axum) and of
/// [`actix`](super::actix) returns it.
#[derive(Clone)]
pub struct Route(Option<Template>);

/// The template, in the type of a framework.
#[derive(Clone)]
pub(super) enum Template {
    #[cfg(feature = "axum")]
    Axum(axum::extract::MatchedPath),
    #[cfg(feature = "actix")]
    Actix(String),
}

impl Route {
    pub(super) fn new(template: Option<Template>) -> Self {
        Self(template)
    }

    /// Returns the template; empty for a request without a route.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match &self.0 {
            None => "",
            #[cfg(feature = "axum")]
            Some(Template::Axum(path)) => path.as_str(),
            #[cfg(feature = "actix")]
            Some(Template::Actix(pattern)) => pattern,
        }
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

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Route").field(&self.as_str()).finish()
    }
}
