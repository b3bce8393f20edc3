//! The limits that the processes of a fleet have announced.

use std::time::Duration;

use anyhow::bail;
use ratelimit_runtime::{AnnouncedLimit, Limit, RateLimiter, Scope};

use crate::text::duration;

/// Returns the limits of the fleet. Limits of several processes and places that share their counts are one.
pub(crate) async fn limits(limiter: &RateLimiter) -> anyhow::Result<Vec<AnnouncedLimit>> {
    let mut limits: Vec<AnnouncedLimit> = Vec::new();
    for announced in
        limiter.operator().fleet().await?.into_iter().flat_map(|process| process.limits)
    {
        match limits.iter_mut().find(|known| identity(&known.limit) == identity(&announced.limit)) {
            // Processes of two releases can have two amounts.
            Some(known) => {
                known.is_computed |= announced.is_computed || known.limit != announced.limit;
            }
            None => limits.push(announced),
        }
    }
    limits.sort_by(|one, other| identity(&one.limit).cmp(&identity(&other.limit)));
    Ok(limits)
}

/// Returns what two limits have in common that have one count of a key.
pub(crate) fn identity(limit: &Limit) -> (&str, Duration, &str, Option<String>, bool) {
    let align = limit.get_align().map(|align| align.to_string());
    let is_shared = limit.policy().scope == Scope::Global;
    (limit.name(), limit.period(), limit.algorithm().as_str(), align, is_shared)
}

/// Returns whether a name, or a name and a period, is written of a limit: `api`, `api/1m`.
pub(crate) fn is_named(limit: &Limit, written: &str) -> bool {
    let with_period = written.rsplit_once('/').is_some_and(|(name, period)| {
        name == limit.name()
            && Limit::parse(name, &format!("1/{period}"))
                .is_ok_and(|written| written.period() == limit.period())
    });
    limit.name() == written || with_period
}

/// Returns a limit of the fleet by its name, or by its name and its period.
pub(crate) async fn find(limiter: &RateLimiter, name: &str) -> anyhow::Result<AnnouncedLimit> {
    let mut found = limits(limiter).await?;
    found.retain(|announced| is_named(&announced.limit, name));
    match &found[..] {
        [announced] => Ok(announced.clone()),
        [] => bail!(
            "no process of the fleet has a limit `{name}`: see `list`. A limit without the attribute is known once it \
             has rejected a call"
        ),
        several => {
            let limit = |announced: &AnnouncedLimit| {
                format!("{} {}", announced.limit.algorithm(), duration(announced.limit.period()))
            };
            let limits: Vec<_> = several.iter().map(limit).collect();
            bail!(
                "`{name}` is the name of several limits, {limits:?}: write one, such as `{name}/1m`"
            )
        }
    }
}
