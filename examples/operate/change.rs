//! The commands that change rules: a rule that does not fit is not written, and the tool waits until all processes
//! obey.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};
use std::{env, fs};

use anyhow::{Context, bail, ensure};
use ratelimit_runtime::{AnnouncedLimit, Limit, RateLimiter, Rule, RuleSet, StoreError};

use crate::fleet;
use crate::text::shown;

/// How long the tool waits until all processes obey. They announce new rules within two seconds, and in any case every
/// ten seconds.
const OBEYED_WITHIN: Duration = Duration::from_secs(15);

/// The pause before the processes are asked again.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// What a rule is about: a limit, or one key of it.
type Place<'a> = (&'a str, Option<&'a str>);

/// Sets a rule, which may end after a time, and waits until all processes obey.
pub(crate) async fn set(
    limiter: &RateLimiter,
    place: Place<'_>,
    rule: &str,
    lasts: Option<Duration>,
) -> anyhow::Result<()> {
    let mut rule = read_rule(place.0, rule)?;
    if let Some(lasts) = lasts {
        ensure!(rule.until.is_none(), "write `until` or `for`, not both");
        let end = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)? + lasts;
        // Whole seconds are easier to read.
        rule = rule.until(SystemTime::UNIX_EPOCH + Duration::from_secs(end.as_secs() + 1));
    }
    check(limiter, place.0, rule).await?;
    change(limiter, |rules| match place {
        (limit, None) => Ok(rules.set(limit, rule)?),
        (limit, Some(key)) => Ok(rules.set_key(limit, key, rule)?),
    })
    .await
}

/// Removes a rule, and waits until all processes obey.
pub(crate) async fn unset(limiter: &RateLimiter, place: Place<'_>) -> anyhow::Result<()> {
    change(limiter, |rules| {
        let was_there = match place {
            (limit, None) => rules.unset(limit),
            (limit, Some(key)) => rules.unset_key(limit, key),
        };
        ensure!(was_there, "there was no rule");
        Ok(())
    })
    .await
}

/// Replaces all rules by those of a file, and waits until all processes obey. The file is JSON, as `save` writes it, or
/// TOML if its name ends so.
pub(crate) async fn restore(limiter: &RateLimiter, file: &str) -> anyhow::Result<()> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    let is_toml = Path::new(file).extension().is_some_and(|extension| extension == "toml");
    let restored = if is_toml { RuleSet::from_toml(&text) } else { RuleSet::from_json(&text) };
    let restored = restored.with_context(|| format!("nothing was written, because of {file}"))?;
    for (limit, _, rule) in restored.iter() {
        check(limiter, limit, *rule).await?;
    }
    change(limiter, |rules| {
        *rules = restored.clone();
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
        eprintln!(
            "no process of the fleet has announced a limit `{}`: see `list`. The rule is written all the same",
            shown(name)
        );
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
) -> anyhow::Result<()> {
    let by = env::var("USER").unwrap_or_else(|_| "operate".to_owned());
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

/// Waits until all processes have announced the new rules. After 15 seconds, prints which have not.
async fn wait_until_obeyed(limiter: &RateLimiter) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let (fleet, shared) =
            (limiter.operator().fleet().await?, limiter.operator().shared_rules().await?);
        let behind: Vec<_> =
            fleet.iter().filter(|process| process.rules != shared.version()).collect();
        match (behind.is_empty(), fleet.len()) {
            (true, 0) => println!("written; no process has announced its limits yet"),
            (true, 1) => println!("in force in 1 process"),
            (true, processes) => println!("in force in all {processes} processes"),
            (false, _) if started.elapsed() < OBEYED_WITHIN => {
                tokio::time::sleep(ASK_AGAIN).await;
                continue;
            }
            (false, processes) => {
                let names: Vec<_> = behind.iter().map(|process| &*process.id).collect();
                bail!(
                    "written, but {} of {processes} processes have not announced these rules in {OBEYED_WITHIN:?}: \
                     {}. A process that has ended is listed for 30 s",
                    behind.len(),
                    names.join(", ")
                )
            }
        }
        return Ok(());
    }
}
