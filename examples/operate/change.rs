//! The commands that change rules: a rule that does not fit is not written, and the tool waits until all processes
//! obey.

use std::env;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use ratelimit_runtime::{AnnouncedLimit, Limit, RateLimiter, Rule, RuleSet, StoreError};

use crate::{fleet, shown};

/// How long the tool waits until all processes obey. They announce new rules within two seconds, and in any case every
/// ten seconds.
const OBEYED_WITHIN: Duration = Duration::from_secs(15);

/// The pause before the processes are asked again.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// Sets or removes a rule, and waits until all processes obey.
pub(crate) async fn rule(
    limiter: &RateLimiter,
    limit: &str,
    key: Option<&str>,
    rule: Option<&str>,
) -> anyhow::Result<()> {
    let rule = rule.map(|rule| read_rule(limit, rule)).transpose()?;
    if let Some(rule) = rule {
        check(limiter, limit, rule).await?;
    }
    write(limiter, limit, key, rule).await?;
    wait_until_obeyed(limiter).await
}

/// Reads a rule as in a file, `threshold = 300, burst = 20`, or a word: `closed`.
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
        let limit = match limit.try_amounts(u32::MAX, None) {
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

/// Writes the rules. If another operator writes rules at the same time, reads them and tries again.
async fn write(
    limiter: &RateLimiter,
    limit: &str,
    key: Option<&str>,
    rule: Option<Rule>,
) -> anyhow::Result<()> {
    let by = env::var("USER").unwrap_or_else(|_| "operate".to_owned());
    loop {
        let mut shared = limiter.shared_rules().await?;
        match (key, rule) {
            (None, Some(rule)) => shared.rules.set(limit, rule)?,
            (Some(key), Some(rule)) => shared.rules.set_key(limit, key, rule)?,
            (None, None) => ensure!(shared.rules.unset(limit), "there was no rule"),
            (Some(key), None) => ensure!(shared.rules.unset_key(limit, key), "there was no rule"),
        }
        match limiter.share_rules(shared, &by).await {
            Ok(()) => return Ok(()),
            Err(StoreError::RulesChanged) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits until all processes have announced the new rules. After 15 seconds, prints which have not.
async fn wait_until_obeyed(limiter: &RateLimiter) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let (fleet, shared) = (limiter.fleet().await?, limiter.shared_rules().await?);
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
