//! The commands that only look.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::time::{Duration, SystemTime};

use ratelimit_runtime::{
    AnnouncedLimit, AnnouncedProcess, Calendar, Decision, OwnedKey, RateLimiter, RejectedKey, Rule,
    RuleSet, Usage,
};
use serde::Serialize;

use crate::fleet;
use crate::text::{BAD, DOUBTFUL, Report, Text, duration, milliseconds, unix_milliseconds};

/// The number of keys that `top` prints.
const TOP: usize = 20;

#[derive(Serialize)]
pub(crate) struct List {
    rules_are_lost: bool,
    processes: Vec<Process>,
    limits: Vec<Listed>,
    rules: RuleSet,
}

#[derive(Serialize)]
struct Process {
    id: String,
    limits: usize,
    rules: RulesOfProcess,
}

#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum RulesOfProcess {
    InForce,
    Older,
    Lost,
}

impl RulesOfProcess {
    fn new(process: &AnnouncedProcess, version: &str) -> Self {
        if process.rules == version {
            Self::InForce
        } else if version.is_empty() {
            Self::Lost
        } else {
            Self::Older
        }
    }
}

/// A limit of the fleet.
#[derive(PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Listed {
    limit: String,
    algorithm: &'static str,
    /// None if each call computes it.
    threshold: Option<u64>,
    period_ms: u64,
    /// The unit of the calendar, if windows have one.
    calendar: Option<&'static str>,
    /// Empty if code checks the limit by hand.
    place: String,
}

pub(crate) async fn list(limiter: &RateLimiter) -> anyhow::Result<List> {
    let (fleet, shared) =
        (limiter.operator().fleet().await?, limiter.operator().shared_rules().await?);
    let has_lost = fleet.iter().any(|process| !process.rules.is_empty());
    let process = |process: &AnnouncedProcess| Process {
        id: process.id.clone(),
        limits: process.limits.len() + process.left_out,
        rules: RulesOfProcess::new(process, shared.version()),
    };
    let processes = fleet.iter().map(process).collect();
    let listed = |AnnouncedLimit { limit, place, is_computed, .. }: AnnouncedLimit| Listed {
        limit: limit.name().to_owned(),
        algorithm: limit.algorithm().as_str(),
        threshold: (!is_computed).then(|| limit.threshold()),
        period_ms: milliseconds(limit.period()),
        calendar: limit.get_calendar().map(Calendar::as_str),
        place,
    };
    let limits = fleet.into_iter().flat_map(|process| process.limits);
    let mut limits: Vec<_> = limits.map(listed).collect();
    limits.sort();
    limits.dedup();
    let rules_are_lost = shared.version().is_empty() && has_lost;
    Ok(List { rules_are_lost, processes, limits, rules: shared.rules })
}

impl Report for List {
    fn write(&self, text: &mut Text) -> fmt::Result {
        if self.rules_are_lost {
            text.styled(
                BAD,
                "Redis has lost the rules: `restore` a file of `save`, or `set` them again\n",
            );
        }
        for Process { id, limits, rules } in &self.processes {
            write!(text, "process {id}: {limits} limits")?;
            match rules {
                RulesOfProcess::InForce => {}
                RulesOfProcess::Older => text.styled(DOUBTFUL, ", with older rules"),
                RulesOfProcess::Lost => text.styled(DOUBTFUL, ", with rules that Redis has lost"),
            }
            writeln!(text)?;
        }
        for Listed { limit, algorithm, threshold, period_ms, calendar, place } in &self.limits {
            let length = || duration(Duration::from_millis(*period_ms));
            let amounts = match threshold {
                Some(threshold) => {
                    format!("{threshold} per {}", calendar.map_or_else(length, str::to_owned))
                }
                None => "computed".to_owned(),
            };
            let place = if place.is_empty() { "checked by hand" } else { place };
            writeln!(text, "limit {limit}: {amounts}, {algorithm}, {place}")?;
        }
        for (limit, key, rule) in self.rules.iter() {
            match key {
                Some(key) => writeln!(text, "rule {limit} {key}: {rule}")?,
                None => writeln!(text, "rule {limit}: {rule}")?,
            }
        }
        Ok(())
    }
}

/// The rule of a limit, or of one of its keys.
#[derive(Serialize)]
pub(crate) struct RuleOf {
    limit: String,
    key: Option<String>,
    rule: Option<Rule>,
}

pub(crate) async fn rule_of(
    limiter: &RateLimiter,
    limit: String,
    key: Option<String>,
) -> anyhow::Result<RuleOf> {
    let rules = limiter.operator().shared_rules().await?.rules;
    let rule = match &key {
        Some(key) => rules.key_rule(&limit, key),
        None => rules.rule(&limit),
    };
    Ok(RuleOf { limit, key, rule })
}

impl Report for RuleOf {
    fn write(&self, text: &mut Text) -> fmt::Result {
        match &self.rule {
            Some(rule) => writeln!(text, "{rule}"),
            None => writeln!(text, "no rule"),
        }
    }
}

/// All rules, which `restore` reads.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Saved(RuleSet);

pub(crate) async fn saved(limiter: &RateLimiter) -> anyhow::Result<Saved> {
    Ok(Saved(limiter.operator().shared_rules().await?.rules))
}

impl Report for Saved {
    fn write(&self, text: &mut Text) -> fmt::Result {
        writeln!(text, "{}", self.0.to_json())
    }
}

/// Changes of rules, the newest first.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Changes(Vec<Change>);

#[derive(Serialize)]
pub(crate) struct Change {
    at_unix_ms: u64,
    by: String,
    what: Vec<String>,
    #[serde(skip)]
    pub(crate) version: String,
}

pub(crate) async fn log(limiter: &RateLimiter) -> anyhow::Result<Changes> {
    Ok(Changes(changes(limiter).await?))
}

pub(crate) async fn changes(limiter: &RateLimiter) -> anyhow::Result<Vec<Change>> {
    let changes = limiter.operator().rule_changes(100).await?.into_iter();
    let change = |change: ratelimit_runtime::RuleChange| Change {
        at_unix_ms: unix_milliseconds(change.at),
        by: change.by,
        what: change.what,
        version: change.version,
    };
    Ok(changes.map(change).collect())
}

impl Report for Changes {
    fn write(&self, text: &mut Text) -> fmt::Result {
        self.0.iter().try_for_each(|change| change.write(text))
    }
}

impl Report for Change {
    fn write(&self, text: &mut Text) -> fmt::Result {
        let Self { by, what, .. } = self;
        writeln!(text, "{} ago, {by}: {}", time_since(self.at_unix_ms), what.join("; "))
    }
}

/// Returns the whole seconds since a time.
fn time_since(unix_ms: u64) -> String {
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(unix_ms));
    let since = time.and_then(|time| SystemTime::now().duration_since(time).ok());
    duration(Duration::from_secs(since.unwrap_or_default().as_secs()))
}

/// The keys with the most rejected calls.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct MostRejected(Vec<TopKey>);

#[derive(Serialize)]
pub(crate) struct TopKey {
    pub(crate) limit: String,
    pub(crate) period_ms: u64,
    pub(crate) key: String,
    pub(crate) rejected: u64,
    since_unix_ms: u64,
    pub(crate) last_unix_ms: u64,
    pub(crate) is_shadow: bool,
}

pub(crate) async fn most_rejected(limiter: &RateLimiter) -> anyhow::Result<MostRejected> {
    let mut keys = rejected(limiter).await?;
    keys.truncate(TOP);
    Ok(MostRejected(keys))
}

/// Returns the keys with rejected calls in all processes, those with the most first. Each process announces its own
/// every ten seconds.
pub(crate) async fn rejected(limiter: &RateLimiter) -> anyhow::Result<Vec<TopKey>> {
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
    let rejected = |key: RejectedKey| TopKey {
        limit: key.limit.to_owned(),
        period_ms: milliseconds(key.period),
        key: key.key,
        rejected: key.rejected,
        since_unix_ms: unix_milliseconds(key.since),
        last_unix_ms: unix_milliseconds(key.last),
        is_shadow: key.is_shadow,
    };
    let mut keys: Vec<_> = all.into_values().map(rejected).collect();
    keys.sort_by(|one, other| {
        other.rejected.cmp(&one.rejected).then_with(|| one.key.cmp(&other.key))
    });
    Ok(keys)
}

impl Report for MostRejected {
    fn write(&self, text: &mut Text) -> fmt::Result {
        if self.0.is_empty() {
            writeln!(text, "no process has announced a rejected call in ten minutes")?;
        }
        self.0.iter().try_for_each(|key| key.write(text))
    }
}

impl Report for TopKey {
    fn write(&self, text: &mut Text) -> fmt::Result {
        let Self { limit, key, rejected, .. } = self;
        let shadow = if self.is_shadow { " (a shadow)" } else { "" };
        let (since, last) = (time_since(self.since_unix_ms), time_since(self.last_unix_ms));
        writeln!(text, "{rejected:8}  {limit}  {key}  in {since}, the last {last} ago{shadow}")
    }
}

/// The keys that have used most of their capacity.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Fullest(Vec<Full>);

#[derive(PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Full {
    #[serde(skip)]
    permille: u64,
    used: u64,
    /// None if each call computes it.
    capacity: Option<u64>,
    key: String,
}

/// Pauses between pages, because Redis serves the fleet.
pub(crate) async fn fullest(
    limiter: &RateLimiter,
    announced: &AnnouncedLimit,
) -> anyhow::Result<Fullest> {
    let AnnouncedLimit { limit, is_computed, .. } = announced;
    let (mut fullest, mut next) = (Vec::new(), None);
    loop {
        let page = limiter.operator().keys(limit, next).await?;
        for key in page.keys {
            fullest.push(if *is_computed {
                // Of how many is known to the code of the service alone.
                let used = limiter.operator().usage(limit, &key).await?.used;
                Full { permille: 0, used, capacity: None, key: key.to_string() }
            } else {
                let peeked = limiter.peek(limit, &key, 1).await?;
                let used = peeked.limit.saturating_sub(peeked.remaining);
                let permille = used.saturating_mul(1_000) / peeked.limit.max(1);
                Full { permille, used, capacity: Some(peeked.limit), key: key.to_string() }
            });
        }
        // A key can be on two pages.
        fullest.sort_unstable_by(|one, other| other.cmp(one));
        fullest.dedup();
        fullest.truncate(TOP);
        let Some(cursor) = page.next else { return Ok(Fullest(fullest)) };
        next = Some(cursor);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

impl Report for Fullest {
    fn write(&self, text: &mut Text) -> fmt::Result {
        for Full { permille, used, capacity, key } in &self.0 {
            let (percent, tenth) = (permille / 10, permille % 10);
            match capacity {
                Some(capacity) => {
                    writeln!(text, "{percent:3}.{tenth} %  {used} of {capacity}  {key}")?;
                }
                None => writeln!(text, "{used:8}  {key}")?,
            }
        }
        Ok(())
    }
}

/// The counts of a key, and its rules.
#[derive(Serialize)]
pub(crate) struct Found {
    counts: Vec<Counted>,
    rules: Vec<RuleOf>,
}

/// The count of a key.
#[derive(Serialize)]
pub(crate) struct Counted {
    limit: String,
    algorithm: &'static str,
    period_ms: u64,
    used: u64,
    /// None if each call computes it.
    capacity: Option<u64>,
    remaining: Option<u64>,
    /// None if the next call is admitted at once, or never.
    retry_after_ms: Option<u64>,
    blocked_for_ms: Option<u64>,
    is_blocked_by_rule: bool,
    reset_after_ms: u64,
}

pub(crate) async fn counts_of(limiter: &RateLimiter, key: &OwnedKey) -> anyhow::Result<Found> {
    let (mut counts, mut rules) = (Vec::new(), Vec::new());
    for announced in fleet::limits(limiter).await? {
        let count = count_of(limiter, &announced, key).await?;
        if count.used > 0 || count.blocked_for_ms.is_some() {
            counts.push(count);
        }
    }
    for (limit, of, rule) in limiter.operator().shared_rules().await?.rules.iter() {
        if of == Some(key) {
            let limit = limit.to_owned();
            rules.push(RuleOf { limit, key: Some(key.to_string()), rule: Some(*rule) });
        }
    }
    Ok(Found { counts, rules })
}

/// Returns how many units of a key are left. If each call computes its amounts, returns how many are in use.
pub(crate) async fn count_of(
    limiter: &RateLimiter,
    AnnouncedLimit { limit, is_computed, .. }: &AnnouncedLimit,
    key: &OwnedKey,
) -> anyhow::Result<Counted> {
    let Usage { used, reset_after, blocked_for, .. } = limiter.operator().usage(limit, key).await?;
    let mut count = Counted {
        limit: limit.name().to_owned(),
        algorithm: limit.algorithm().as_str(),
        period_ms: milliseconds(limit.period()),
        used,
        capacity: None,
        remaining: None,
        retry_after_ms: None,
        blocked_for_ms: blocked_for.map(milliseconds),
        is_blocked_by_rule: false,
        reset_after_ms: milliseconds(reset_after),
    };
    if !is_computed {
        let Decision { allowed, limit: capacity, remaining, retry_after, .. } =
            limiter.peek(limit, key, 1).await?;
        count.is_blocked_by_rule = retry_after == Duration::MAX;
        if !count.is_blocked_by_rule {
            (count.capacity, count.remaining) = (Some(capacity), Some(remaining));
            count.retry_after_ms = (!allowed).then(|| milliseconds(retry_after));
        }
    }
    Ok(count)
}

impl Counted {
    fn write_after_name(&self, text: &mut Text) -> fmt::Result {
        let Self { used, remaining, capacity, retry_after_ms, blocked_for_ms, .. } = self;
        let shown = |ms: &u64| duration(Duration::from_millis(*ms));
        match (remaining, capacity) {
            (Some(remaining), Some(capacity)) if blocked_for_ms.is_none() => {
                writeln!(text, "{remaining} of {capacity} left")?;
                if let Some(wait) = retry_after_ms {
                    writeln!(text, "the next call is admitted in {}", shown(wait))?;
                }
            }
            _ if self.is_blocked_by_rule && blocked_for_ms.is_none() => {
                writeln!(text, "{used} in use, and a rule blocks it")?;
            }
            _ => writeln!(text, "{used} in use")?,
        }
        if let Some(blocked_for) = blocked_for_ms {
            writeln!(text, "blocked for {}", shown(blocked_for))?;
        }
        writeln!(text, "all is left in {}", shown(&self.reset_after_ms))
    }
}

impl Report for Counted {
    fn write(&self, text: &mut Text) -> fmt::Result {
        write!(text, "{}: ", self.limit)?;
        self.write_after_name(text)
    }
}

impl Report for Found {
    fn write(&self, text: &mut Text) -> fmt::Result {
        for count in &self.counts {
            let period = duration(Duration::from_millis(count.period_ms));
            write!(text, "{} ({}, {period}): ", count.limit, count.algorithm)?;
            count.write_after_name(text)?;
        }
        for RuleOf { limit, rule, .. } in &self.rules {
            if let Some(rule) = rule {
                writeln!(text, "rule {limit}: {rule}")?;
            }
        }
        if self.counts.is_empty() && self.rules.is_empty() {
            writeln!(text, "no limit of the fleet has a count or a rule of this key")?;
        }
        Ok(())
    }
}
