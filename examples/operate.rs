//! A tool for operators: lists the limits of running services, shows which keys are close to them, and changes them
//! without a deployment.
//!
//! ```sh
//! cargo run --example operate -- redis://127.0.0.1 list
//! cargo run --example operate -- redis://127.0.0.1 set api threshold = 300
//! cargo run --example operate -- redis://127.0.0.1 set api acme 'threshold = 5_000, burst = 200'
//! cargo run --example operate -- redis://127.0.0.1 set api mallory closed
//! cargo run --example operate -- redis://127.0.0.1 peek api acme
//! ```
//!
//! The services must read their rules from this Redis, with `Rules::redis()`. If they have a key prefix, set
//! `KEY_PREFIX`. The changes are signed with `USER`.

use std::env;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail, ensure};
use ratelimit_runtime::{
    AnnouncedLimit, Decision, Limit, OwnedKey, RateLimiter, Rule, RuleSet, Rules, StoreError,
};

const USAGE: &str = "\
usage: operate URL COMMAND

  list                        the limits of the fleet, its processes, and the rules
  get LIMIT [KEY]             the rule of a limit, or of one key
  set LIMIT [KEY] RULE        changes it: 'threshold = 300', 'shadow = true', closed, exempt
  unset LIMIT [KEY]           removes it
  log                         who has changed what
  top LIMIT                   the fullest keys
  peek LIMIT KEY              what is left of a key
  reset LIMIT KEY             removes its count
  close LIMIT KEY DURATION    rejects its calls for so long: 30s, 1h30m
  open LIMIT KEY              opens it again

A LIMIT is a name, or a name and a period: api/1m. A KEY is written as in Redis: alice, (alice:42), %.";

/// The number of keys that `top` prints.
const TOP: usize = 20;

#[tokio::main]
async fn main() -> ExitCode {
    let Err(error) = run().await else { return ExitCode::SUCCESS };
    eprintln!("Error: {}", shown(&format!("{error:#}")));
    ExitCode::FAILURE
}

/// Returns a text of Redis without characters that a terminal obeys or hides. Whoever can write into Redis chooses it.
fn shown(text: &str) -> String {
    let mut shown = String::new();
    for character in text.chars() {
        match character {
            '\n' | '"' | '\'' | '\\' => shown.push(character),
            other => shown.extend(other.escape_debug()),
        }
    }
    shown
}

async fn run() -> anyhow::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [url, command @ ..] = &arguments[..] else { bail!("{USAGE}") };
    let mut builder = RateLimiter::builder().redis(*url).rules(Rules::redis());
    if let Ok(prefix) = env::var("KEY_PREFIX") {
        builder = builder.key_prefix(prefix);
    }
    let limiter = builder.deadline(Duration::from_secs(5)).build()?;
    limiter.ping().await.context("Redis does not reply")?;
    match command {
        ["list"] => list(&limiter).await,
        ["log"] => log(&limiter).await,
        ["top", limit] => top(&limiter, &find(&limiter, limit).await?).await,
        ["get", limit, key @ ..] if key.len() < 2 => {
            let rules = limiter.shared_rules().await?.rules;
            let key = key.first().copied();
            match key.map_or_else(|| rules.rule(limit), |key| rules.key_rule(limit, key)) {
                Some(rule) => println!("{rule}"),
                None => println!("no rule"),
            }
            Ok(())
        }
        ["set", limit, rule] => change(&limiter, limit, None, Some(rule)).await,
        // `set api threshold = 300`, without quotes
        ["set", limit, field, "=", value] => {
            change(&limiter, limit, None, Some(&format!("{field} = {value}"))).await
        }
        ["set", limit, key, rule] => change(&limiter, limit, Some(key), Some(rule)).await,
        ["unset", limit, key @ ..] if key.len() < 2 => {
            change(&limiter, limit, key.first().copied(), None).await
        }
        ["peek", limit, key] => {
            let limit = find(&limiter, limit).await?;
            print(&limit, &limiter.peek(&limit, OwnedKey::parse(key)?, 1).await?);
            Ok(())
        }
        ["reset", limit, key] => {
            let limit = find(&limiter, limit).await?;
            let was_there = limiter.reset(&limit, OwnedKey::parse(key)?).await?;
            println!("{}", if was_there { "removed" } else { "there was no count" });
            Ok(())
        }
        ["close", limit, key, duration] => {
            let limit = find(&limiter, limit).await?;
            let duration = Limit::parse("close", &format!("1/{duration}"))?.period();
            limiter.close(&limit, OwnedKey::parse(key)?, duration).await?;
            println!("closed for {duration:?}");
            Ok(())
        }
        ["open", limit, key] => {
            let limit = find(&limiter, limit).await?;
            let was_closed = limiter.open(&limit, OwnedKey::parse(key)?).await?;
            println!("{}", if was_closed { "opened" } else { "it was not closed" });
            Ok(())
        }
        _ => bail!("{USAGE}"),
    }
}

async fn list(limiter: &RateLimiter) -> anyhow::Result<()> {
    let (fleet, shared) = (limiter.fleet().await?, limiter.shared_rules().await?);
    for process in &fleet {
        let is_behind = process.rules != shared.version() && !process.limits.is_empty();
        let note = if is_behind { ", with older rules" } else { "" };
        let limits = process.limits.len() + process.left_out;
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

fn line(AnnouncedLimit { limit, place, is_computed, .. }: &AnnouncedLimit) -> String {
    let amounts = if *is_computed {
        "computed".to_owned()
    } else {
        format!("{} per {:?}", limit.threshold(), limit.period())
    };
    format!("{}: {amounts}, {}, {place}", limit.name(), limit.algorithm())
}

async fn log(limiter: &RateLimiter) -> anyhow::Result<()> {
    for change in limiter.rule_changes(100).await? {
        let ago = SystemTime::now().duration_since(change.at).unwrap_or_default().as_secs();
        println!("{ago} s ago, {}: {}", shown(&change.by), shown(&change.what.join("; ")));
    }
    Ok(())
}

/// Prints the keys that have used most of their capacity. Pauses between pages, because Redis serves the fleet.
async fn top(limiter: &RateLimiter, limit: &Limit) -> anyhow::Result<()> {
    let (mut fullest, mut next) = (Vec::new(), None);
    loop {
        let page = limiter.keys(limit, next).await?;
        for key in page.keys {
            let Decision { limit: capacity, remaining, .. } = limiter.peek(limit, &key, 1).await?;
            let used = capacity.saturating_sub(remaining);
            let permille = u64::from(used) * 1_000 / u64::from(capacity.max(1));
            fullest.push((permille, used, capacity, key.to_string()));
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
        println!("{:3}.{} %  {used} of {capacity}  {key}", permille / 10, permille % 10);
    }
    Ok(())
}

/// Sets or removes a rule. If another operator writes rules at the same time, reads them and tries again.
async fn change(
    limiter: &RateLimiter,
    limit: &str,
    key: Option<&str>,
    rule: Option<&str>,
) -> anyhow::Result<()> {
    let rule = rule.map(|rule| read_rule(limit, rule)).transpose()?;
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
            Ok(()) => break,
            Err(StoreError::RulesChanged) => {}
            Err(error) => return Err(error.into()),
        }
    }
    println!("in force everywhere within two seconds");
    Ok(())
}

/// Reads a rule as in a file, `threshold = 300, burst = 20`, or a word: `closed`.
fn read_rule(limit: &str, text: &str) -> anyhow::Result<Rule> {
    let value = if text.contains('=') { format!("{{ {text} }}") } else { format!("{text:?}") };
    let rules = RuleSet::from_toml(&format!("{limit:?} = {value}"))?;
    rules.rule(limit).context("there is no rule")
}

/// Returns a limit of the fleet by its name, or by its name and its period.
async fn find(limiter: &RateLimiter, name: &str) -> anyhow::Result<Limit> {
    let announced = limiter.fleet().await?.into_iter().flat_map(|process| process.limits);
    let mut found: Vec<Limit> = Vec::new();
    for AnnouncedLimit { limit, .. } in announced {
        let is_found = found.iter().any(|other| {
            (other.algorithm(), other.period()) == (limit.algorithm(), limit.period())
        });
        let with_period = name.rsplit_once('/').is_some_and(|(of, period)| {
            of == limit.name()
                && Limit::parse(of, &format!("1/{period}"))
                    .is_ok_and(|written| written.period() == limit.period())
        });
        if !is_found && (limit.name() == name || with_period) {
            found.push(limit);
        }
    }
    match &found[..] {
        [limit] => Ok(*limit),
        [] => bail!("no process of the fleet has a limit `{name}`: see `list`"),
        several => {
            let periods: Vec<_> = several.iter().map(Limit::period).collect();
            bail!("`{name}` has several periods, {periods:?}: write one, such as `{name}/1m`")
        }
    }
}

fn print(limit: &Limit, decision: &Decision) {
    let Decision { limit: capacity, remaining, retry_after, reset_after, .. } = *decision;
    println!("{}: {remaining} of {capacity} left", shown(limit.name()));
    if !decision.allowed {
        println!("the next call is admitted in {retry_after:?}");
    }
    println!("all is left in {reset_after:?}");
}
