//! Warns of a limiter that each worker of actix-web builds for itself.

use std::panic::Location;
use std::sync::{Mutex, PoisonError};

use actix_web::rt::System;

/// The most places that are remembered.
const MOST: usize = 256;

/// Warns if `place` builds its second limiter with an embedded store in this `System`: each worker calls the factory of
/// an `App`.
pub(super) fn check(place: &'static Location<'static>) {
    /// A system and a place, once for each limiter. At most twice: the second one has warned.
    static BUILT: Mutex<Vec<(usize, &Location<'_>)>> = Mutex::new(Vec::new());
    let Some(system) = System::try_current() else { return };
    let built = (system.id(), place);
    let mut known = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let before = known.iter().filter(|other| **other == built).count();
    if before == 1 || before == 0 && known.len() < MOST {
        known.push(built);
    }
    drop(known);
    if before == 1 {
        tracing::warn!(
            %place,
            "a second limiter without Redis is built in one place, and limiters do not share counts: a limiter in the \
             factory of an `App` is another one in each worker, so four workers admit four times the limit. Build it \
             before `HttpServer::new`, and clone it in the factory"
        );
    }
}
