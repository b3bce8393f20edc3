//! The commands that change rules: a rule that does not fit is not written, and the command waits until all processes
//! obey. Also the reports of the commands that change counts.

use std::fmt::{self, Display, Write as _};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};
use std::{env, fs};

use anyhow::{Context, bail, ensure};
use ratelimit_runtime::{AnnouncedLimit, Limit, RateLimiter, Rule, RuleSet, StoreError};
use serde::Serialize;

use crate::fleet;
use crate::text::{Report, Text, duration, note};

/// How long the command waits until all processes obey. They announce new rules within two seconds, and in any case
/// every ten seconds.
const OBEYED_WITHIN: Duration = Duration::from_secs(15);

/// The pause before the processes are asked again.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// What a rule is about: a limit, or one key of it.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) limit: &'a str,
    pub(crate) key: Option<&'a str>,
}

impl Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key {
            Some(key) => write!(f, "`{key}` in `{}`", self.limit),
            None => write!(f, "`{}`", self.limit),
        }
    }
}

/// Rules that are in force.
#[derive(Serialize)]
pub(crate) struct InForce {
    processes: usize,
}

impl Report for InForce {
    fn write(&self, text: &mut Text) -> fmt::Result {
        match self.processes {
            0 => writeln!(text, "written; no process has announced its limits yet"),
            1 => writeln!(text, "in force in 1 process"),
            processes => writeln!(text, "in force in all {processes} processes"),
        }
    }
}

#[derive(Serialize)]
pub(crate) struct Reset {
    pub(crate) removed: bool,
}

impl Report for Reset {
    fn write(&self, text: &mut Text) -> fmt::Result {
        writeln!(text, "{}", if self.removed { "removed" } else { "there was no count" })
    }
}

#[derive(Serialize)]
pub(crate) struct Block {
    pub(crate) blocked_for_ms: u64,
}

impl Report for Block {
    fn write(&self, text: &mut Text) -> fmt::Result {
        let blocked_for = Duration::from_millis(self.blocked_for_ms);
        writeln!(text, "blocked for {}", duration(blocked_for))
    }
}

#[derive(Serialize)]
pub(crate) struct Unblock {
    pub(crate) unblocked: bool,
}

impl Report for Unblock {
    fn write(&self, text: &mut Text) -> fmt::Result {
        writeln!(text, "{}", if self.unblocked { "unblocked" } else { "it was not blocked" })
    }
}

/// Splits the words after a limit: a rule can have no quotes, `threshold = 300`, and a key can precede it.
pub(crate) fn key_and_rule(words: &[String]) -> (Option<String>, String) {
    match words {
        [key, rule @ ..] if !rule.is_empty() && rule[0] != "=" => {
            (Some(key.clone()), rule.join(" "))
        }
        rule => (None, rule.join(" ")),
    }
}

/// Sets a rule, which may end after a time, and waits until all processes obey.
pub(crate) async fn set(
    limiter: &RateLimiter,
    place: Place<'_>,
    rule: &str,
    lasts: Option<Duration>,
) -> anyhow::Result<InForce> {
    let mut rule = read_rule(place.limit, rule)?;
    if let Some(lasts) = lasts {
        ensure!(rule.until.is_none(), "write `until` or `--for`, not both");
        let end = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)? + lasts;
        // Whole seconds are easier to read.
        rule = rule.until(SystemTime::UNIX_EPOCH + Duration::from_secs(end.as_secs() + 1));
    }
    check(limiter, place.limit, rule).await?;
    change(limiter, |rules| match place.key {
        None => Ok(rules.set(place.limit, rule)?),
        Some(key) => Ok(rules.set_key(place.limit, key, rule)?),
    })
    .await
}

/// Removes a rule, and waits until all processes obey.
pub(crate) async fn unset(limiter: &RateLimiter, place: Place<'_>) -> anyhow::Result<InForce> {
    change(limiter, |rules| {
        let was_there = match place.key {
            None => rules.unset(place.limit),
            Some(key) => rules.unset_key(place.limit, key),
        };
        ensure!(was_there, "there was no rule of {place}: `list` prints all rules");
        Ok(())
    })
    .await
}

/// Reads the rules of a file: JSON, as `save` writes it, or TOML if its name ends so. Fails if one does not fit.
pub(crate) async fn read_file(limiter: &RateLimiter, file: &str) -> anyhow::Result<RuleSet> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    let is_toml = Path::new(file).extension().is_some_and(|extension| extension == "toml");
    let restored = if is_toml { RuleSet::from_toml(&text) } else { RuleSet::from_json(&text) };
    let restored = restored.with_context(|| format!("nothing was written, because of {file}"))?;
    for (limit, _, rule) in restored.iter() {
        check(limiter, limit, *rule).await?;
    }
    Ok(restored)
}

/// Replaces all rules, and waits until all processes obey.
pub(crate) async fn restore(limiter: &RateLimiter, restored: &RuleSet) -> anyhow::Result<InForce> {
    change(limiter, |rules| {
        rules.clone_from(restored);
        Ok(())
    })
    .await
}

/// Reads a rule as in a file, `threshold = 300, burst = 20`, or a word: `blocked`.
fn read_rule(limit: &str, text: &str) -> anyhow::Result<Rule> {
    let value = if text.contains('=') { format!("{{ {text} }}") } else { format!("{text:?}") };
    let rules = RuleSet::from_toml(&format!("{limit:?} = {value}"))?;
    rules.rule(limit).context("there is no rule")
}

/// Fails if the rule does not fit a limit of the fleet: each process would ignore a part of it.
async fn check(limiter: &RateLimiter, name: &str, rule: Rule) -> anyhow::Result<()> {
    let mut limits = fleet::limits(limiter).await?;
    limits.retain(|announced| fleet::is_named(&announced.limit, name));
    if limits.is_empty() {
        note(&format!(
            "no process of the fleet has announced a limit `{name}`: see `list`. The rule is written all the same"
        ));
    }
    for AnnouncedLimit { limit, is_computed, .. } in limits {
        // Of a limit with computed amounts, the fastest rate: then the burst of the rule fills in time.
        let limit = match limit.try_amounts(4_000_000_000, None) {
            Ok(fastest) if is_computed => fastest,
            _ => limit,
        };
        rule.check_fits(&limit).with_context(|| describe(&limit))?;
    }
    Ok(())
}

fn describe(limit: &Limit) -> String {
    format!("nothing was written, because the rule does not fit {limit:?}")
}

/// Changes the rules, and waits until all processes obey. If another operator writes rules at the same time, reads
/// them and changes those.
async fn change(
    limiter: &RateLimiter,
    apply: impl Fn(&mut RuleSet) -> anyhow::Result<()>,
) -> anyhow::Result<InForce> {
    let by = env::var("USER").unwrap_or_else(|_| "ratelimit".to_owned());
    loop {
        let mut shared = limiter.operator().shared_rules().await?;
        apply(&mut shared.rules)?;
        match limiter.operator().share_rules(shared, &by).await {
            Ok(()) => return wait_until_obeyed(limiter).await,
            Err(StoreError::RulesChanged) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits until all processes have announced the new rules. After 15 seconds, the error names the processes that have
/// not.
async fn wait_until_obeyed(limiter: &RateLimiter) -> anyhow::Result<InForce> {
    let started = Instant::now();
    loop {
        let (fleet, shared) =
            (limiter.operator().fleet().await?, limiter.operator().shared_rules().await?);
        let behind = fleet.iter().filter(|process| process.rules != shared.version());
        let behind: Vec<_> = behind.map(|process| &*process.id).collect();
        if behind.is_empty() {
            return Ok(InForce { processes: fleet.len() });
        }
        if started.elapsed() >= OBEYED_WITHIN {
            bail!(
                "written, but {} of {} processes have not announced these rules in {OBEYED_WITHIN:?}: {}. A process \
                 that has ended is listed for 30 s",
                behind.len(),
                fleet.len(),
                behind.join(", ")
            );
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}
