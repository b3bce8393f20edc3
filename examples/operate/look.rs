//! The commands that only look.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use ratelimit_runtime::{
    AnnouncedLimit, AnnouncedProcess, Decision, OwnedKey, RateLimiter, RejectedKey, Usage,
};

use crate::fleet;
use crate::text::{duration, shown};

/// The number of keys that `top` prints.
const TOP: usize = 20;

pub(crate) async fn list(limiter: &RateLimiter) -> anyhow::Result<()> {
    let (fleet, shared) =
        (limiter.operator().fleet().await?, limiter.operator().shared_rules().await?);
    let has_lost = fleet.iter().any(|process| !process.rules.is_empty());
    if shared.version().is_empty() && has_lost {
        println!("Redis has lost the rules: `restore` a file of `save`, or `set` them again");
    }
    for process in &fleet {
        let limits = process.limits.len() + process.left_out;
        let note = note_on_rules(process, shared.version());
        println!("process {}: {limits} limits{note}", shown(&process.id));
    }
    let limits = fleet.into_iter().flat_map(|process| process.limits);
    let mut lines: Vec<_> = limits.map(|announced| line(&announced)).collect();
    lines.sort();
    lines.dedup();
    for line in lines {
        println!("limit {}", shown(&line));
    }
    for (limit, key, rule) in shared.rules.iter() {
        match key {
            Some(key) => println!("rule {} {key}: {rule}", shown(limit)),
            None => println!("rule {}: {rule}", shown(limit)),
        }
    }
    Ok(())
}

fn note_on_rules(process: &AnnouncedProcess, version: &str) -> &'static str {
    if process.rules == version {
        ""
    } else if version.is_empty() {
        ", with rules that Redis has lost"
    } else {
        ", with older rules"
    }
}

fn line(AnnouncedLimit { limit, place, is_computed, .. }: &AnnouncedLimit) -> String {
    let amounts = if *is_computed {
        "computed".to_owned()
    } else {
        format!("{} per {}", limit.threshold(), duration(limit.period()))
    };
    let place = if place.is_empty() { "checked by hand" } else { place };
    format!("{}: {amounts}, {}, {place}", limit.name(), limit.algorithm())
}

pub(crate) async fn log(limiter: &RateLimiter) -> anyhow::Result<()> {
    for change in limiter.operator().rule_changes(100).await? {
        let (ago, by) = (time_since(change.at), shown(&change.by));
        println!("{ago} ago, {by}: {}", shown(&change.what.join("; ")));
    }
    Ok(())
}

/// Returns the whole seconds since a time.
fn time_since(time: SystemTime) -> String {
    let since = SystemTime::now().duration_since(time).unwrap_or_default();
    duration(Duration::from_secs(since.as_secs()))
}

/// Prints the keys with the most rejected calls in all processes. Each process announces its own every ten seconds.
pub(crate) async fn most_rejected(limiter: &RateLimiter) -> anyhow::Result<()> {
    let mut all: HashMap<_, RejectedKey> = HashMap::new();
    for key in limiter.operator().fleet().await?.into_iter().flat_map(|process| process.rejected) {
        let place = (key.limit, key.period, key.key.clone(), key.is_shadow);
        all.entry(place)
            .and_modify(|known| {
                known.rejected = known.rejected.saturating_add(key.rejected);
                known.since = known.since.min(key.since);
                known.last = known.last.max(key.last);
            })
            .or_insert(key);
    }
    let mut keys: Vec<_> = all.into_values().collect();
    keys.sort_by(|one, other| {
        other.rejected.cmp(&one.rejected).then_with(|| one.key.cmp(&other.key))
    });
    if keys.is_empty() {
        println!("no process has announced a rejected call in ten minutes");
    }
    for key in keys.into_iter().take(TOP) {
        let RejectedKey { rejected, since, last, .. } = key;
        let shadow = if key.is_shadow { " (a shadow)" } else { "" };
        let (limit, key) = (shown(key.limit.as_str()), shown(&key.key));
        let (since, last) = (time_since(since), time_since(last));
        println!("{rejected:8}  {limit}  {key}  in {since}, the last {last} ago{shadow}");
    }
    Ok(())
}

/// Prints the keys that have used most of their capacity. Pauses between pages, because Redis serves the fleet.
pub(crate) async fn fullest(
    limiter: &RateLimiter,
    announced: &AnnouncedLimit,
) -> anyhow::Result<()> {
    let AnnouncedLimit { limit, is_computed, .. } = announced;
    let (mut fullest, mut next) = (Vec::new(), None);
    loop {
        let page = limiter.operator().keys(limit, next).await?;
        for key in page.keys {
            fullest.push(if *is_computed {
                // Of how many is known to the code of the service alone.
                (0, limiter.operator().usage(limit, &key).await?.used, None, key.to_string())
            } else {
                let peeked = limiter.peek(limit, &key, 1).await?;
                let used = peeked.limit.saturating_sub(peeked.remaining);
                let permille = used * 1_000 / peeked.limit.max(1);
                (permille, used, Some(peeked.limit), key.to_string())
            });
        }
        // A key can be on two pages.
        fullest.sort_unstable_by(|one, other| other.cmp(one));
        fullest.dedup();
        fullest.truncate(TOP);
        let Some(cursor) = page.next else { break };
        next = Some(cursor);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for (permille, used, capacity, key) in fullest {
        match capacity {
            Some(capacity) => {
                println!("{:3}.{} %  {used} of {capacity}  {key}", permille / 10, permille % 10);
            }
            None => println!("{used:8}  {key}"),
        }
    }
    Ok(())
}

/// Prints the counts of a key, and its rules.
pub(crate) async fn counts_of(limiter: &RateLimiter, key: &str) -> anyhow::Result<()> {
    let key = OwnedKey::parse(key)?;
    let mut is_known = false;
    for announced in fleet::limits(limiter).await? {
        let usage = limiter.operator().usage(&announced.limit, &key).await?;
        if usage.used > 0 || usage.blocked_for.is_some() {
            is_known = true;
            let AnnouncedLimit { limit, .. } = &announced;
            let period = duration(limit.period());
            print!("{} ({}, {period}): ", shown(limit.name()), limit.algorithm());
            print_count(limiter, &announced, &key).await?;
        }
    }
    for (limit, of, rule) in limiter.operator().shared_rules().await?.rules.iter() {
        if of == Some(&key) {
            is_known = true;
            println!("rule {}: {rule}", shown(limit));
        }
    }
    if !is_known {
        println!("no limit of the fleet has a count or a rule of this key");
    }
    Ok(())
}

pub(crate) async fn peek(
    limiter: &RateLimiter,
    announced: &AnnouncedLimit,
    key: &str,
) -> anyhow::Result<()> {
    print!("{}: ", shown(announced.limit.name()));
    print_count(limiter, announced, &OwnedKey::parse(key)?).await
}

/// Prints how many units of a key are left. If each call computes its amounts, prints how many are in use.
async fn print_count(
    limiter: &RateLimiter,
    AnnouncedLimit { limit, is_computed, .. }: &AnnouncedLimit,
    key: &OwnedKey,
) -> anyhow::Result<()> {
    let usage = limiter.operator().usage(limit, key).await?;
    let Usage { used, reset_after, blocked_for, .. } = usage;
    if *is_computed {
        println!("{used} in use");
    } else {
        let Decision { allowed, limit: capacity, remaining, retry_after, .. } =
            limiter.peek(limit, key, 1).await?;
        if blocked_for.is_some() {
            println!("{used} in use");
        } else if retry_after == Duration::MAX {
            println!("{used} in use, and a rule blocks it");
        } else {
            println!("{remaining} of {capacity} left");
            if !allowed {
                println!("the next call is admitted in {}", duration(retry_after));
            }
        }
    }
    if let Some(blocked_for) = blocked_for {
        println!("blocked for {}", duration(blocked_for));
    }
    println!("all is left in {}", duration(reset_after));
    Ok(())
}
