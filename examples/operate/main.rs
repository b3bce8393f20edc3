//! A tool for operators: lists the limits of running services, shows which keys are close to them or rejected by them,
//! and changes limits without a deployment.
//!
//! ```sh
//! cargo install --path examples/operate
//! ```
//!
//! installs the command `operate`. Without that, write `cargo run --example operate --` for `operate`:
//!
//! ```sh
//! cargo run --example operate -- redis://127.0.0.1 list
//! cargo run --example operate -- redis://127.0.0.1 top
//! cargo run --example operate -- redis://127.0.0.1 find acme
//! cargo run --example operate -- redis://127.0.0.1 set api threshold = 300
//! cargo run --example operate -- redis://127.0.0.1 set api acme 'threshold = 5_000, burst = 200'
//! cargo run --example operate -- redis://127.0.0.1 set api mallory blocked for 2h
//! cargo run --example operate -- redis://127.0.0.1 peek api acme
//! ```
//!
//! Without a URL, the tool uses the Redis of `RATELIMIT_REDIS_URL`. It reads all settings of the environment.
//! The services must read their rules from this Redis, with `Rules::redis()`. If they have a `key_prefix`, write it, as
//! `--prefix shop`, or set `RATELIMIT_KEY_PREFIX`. The changes are signed with `USER`.

mod change;
mod fleet;
mod look;
mod text;

use std::env;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use ratelimit_runtime::{OwnedKey, RateLimiter, RateLimiterSettings, Rules};

use crate::text::{duration, read_duration, shown};

const USAGE: &str = "\
usage: operate [--prefix PREFIX] [URL] COMMAND

  list                        the limits of the fleet, its processes, and the rules
  get LIMIT [KEY]             the rule of a limit, or of one key
  set LIMIT [KEY] RULE        changes it: 'threshold = 300', 'trial = 100', blocked, exempt
  set .. for DURATION         changes it for so long: 30s, 1h30m
  unset LIMIT [KEY]           removes it
  save                        prints all rules, for a file
  restore FILE                replaces all rules by those of a file
  log                         who has changed what
  top                         the keys with the most rejected calls
  top LIMIT                   the fullest keys
  find KEY                    the counts and the rules of a key, for all limits
  peek LIMIT KEY              what is left of a key
  reset LIMIT KEY             removes its count
  block LIMIT KEY DURATION    rejects its calls for so long: 30s, 1h30m
  unblock LIMIT KEY           admits them again

  --prefix PREFIX             the `key_prefix` of the services: rl, unless RATELIMIT_KEY_PREFIX is set
  --yes                       changes rules also while no process has announced itself

A LIMIT is a name, or a name and a period: api/1m. A KEY is written as in Redis: alice, (alice:42), %. In it,
hashed(TOKEN) stands for the hash of a key under RATELIMIT_KEY_SECRET.
Without a URL, the Redis of RATELIMIT_REDIS_URL.";

/// Returns a word with the hashes of the keys in its `hashed(..)`.
fn hashed(limiter: &RateLimiter, word: &str) -> anyhow::Result<String> {
    let Some((before, rest)) = word.split_once("hashed(") else { return Ok(word.to_owned()) };
    let mut depth = 1;
    let end = rest.find(|letter| {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        depth == 0
    });
    let (key, after) = rest.split_at(end.context("`hashed(` has no `)`")?);
    let hash = limiter.key_secret()?.hash(OwnedKey::parse(key)?);
    Ok(format!("{before}{hash}{}", hashed(limiter, &after[1..])?))
}

/// The prefix of the services unless one is set, as in the library.
const DEFAULT_PREFIX: &str = "rl";

#[tokio::main]
async fn main() -> ExitCode {
    let Err(error) = run().await else { return ExitCode::SUCCESS };
    eprintln!("Error: {}", shown(&format!("{error:#}")));
    ExitCode::FAILURE
}

async fn run() -> anyhow::Result<()> {
    let (mut arguments, mut prefix, mut is_sure) = (Vec::new(), None, false);
    let mut words = env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--prefix" => prefix = Some(words.next().context(USAGE)?),
            "--yes" => is_sure = true,
            _ => arguments.push(word),
        }
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut settings = RateLimiterSettings::from_environment()?;
    let prefix = prefix.or(settings.key_prefix.take()).unwrap_or_else(|| DEFAULT_PREFIX.to_owned());
    let command = match &arguments[..] {
        [url, command @ ..] if url.contains("://") => {
            settings.redis_url = Some((*url).to_owned());
            command
        }
        command => command,
    };
    ensure!(settings.redis_url.is_some(), "{USAGE}");
    let (command, lasts) = match command {
        // `set api for blocked` sets the rule of a key `for`.
        [set @ .., "for", lasts] if set.len() > 2 => (set, Some(read_duration(lasts)?)),
        command => (command, None),
    };
    let builder = settings.builder()?.rules(Rules::redis());
    let limiter = builder.key_prefix(&*prefix).deadline(Duration::from_secs(5)).build()?;
    let hashed =
        command.iter().map(|word| hashed(&limiter, word)).collect::<Result<Vec<_>, _>>()?;
    let command: &[&str] = &hashed.iter().map(String::as_str).collect::<Vec<_>>();
    limiter.ping().await.context("Redis does not reply")?;
    if limiter.operator().fleet().await?.is_empty() {
        let alone = format!(
            "no process has announced itself under the key prefix `{prefix}`: each one with `Rules::redis()` does so \
             every ten seconds. If the services have another `key_prefix`, write it with `--prefix`"
        );
        let changes_rules = matches!(command, ["set" | "unset" | "restore", ..]);
        ensure!(
            is_sure || !changes_rules,
            "{alone}. To change the rules all the same, add `--yes`"
        );
        eprintln!("{}", shown(&alone));
    }
    match command {
        ["list"] => look::list(&limiter).await,
        ["log"] => look::log(&limiter).await,
        ["top"] => look::most_rejected(&limiter).await,
        ["top", limit] => look::fullest(&limiter, &fleet::find(&limiter, limit).await?).await,
        ["find", key] => look::counts_of(&limiter, key).await,
        ["peek", limit, key] => {
            look::peek(&limiter, &fleet::find(&limiter, limit).await?, key).await
        }
        ["get", limit, key @ ..] if key.len() < 2 => {
            let rules = limiter.operator().shared_rules().await?.rules;
            let key = key.first().copied();
            match key.map_or_else(|| rules.rule(limit), |key| rules.key_rule(limit, key)) {
                Some(rule) => println!("{rule}"),
                None => println!("no rule"),
            }
            Ok(())
        }
        ["set", limit, rule] => change::set(&limiter, (limit, None), rule, lasts).await,
        // `set api threshold = 300`, without quotes
        ["set", limit, field, "=", value] => {
            change::set(&limiter, (limit, None), &format!("{field} = {value}"), lasts).await
        }
        ["set", limit, key, rule] => change::set(&limiter, (limit, Some(key)), rule, lasts).await,
        ["unset", limit, key @ ..] if key.len() < 2 => {
            change::unset(&limiter, (limit, key.first().copied())).await
        }
        ["save"] => {
            println!("{}", limiter.operator().shared_rules().await?.rules.to_json());
            Ok(())
        }
        ["restore", file] => change::restore(&limiter, file).await,
        ["reset", limit, key] => {
            let limit = fleet::find(&limiter, limit).await?.limit;
            let was_there = limiter.reset(&limit, OwnedKey::parse(key)?).await?;
            println!("{}", if was_there { "removed" } else { "there was no count" });
            Ok(())
        }
        ["block", limit, key, lasts] => {
            let limit = fleet::find(&limiter, limit).await?.limit;
            let lasts = read_duration(lasts)?;
            limiter.block(&limit, OwnedKey::parse(key)?, lasts).await?;
            println!("blocked for {}", duration(lasts));
            Ok(())
        }
        ["unblock", limit, key] => {
            let limit = fleet::find(&limiter, limit).await?.limit;
            let was_blocked = limiter.unblock(&limit, OwnedKey::parse(key)?).await?;
            println!("{}", if was_blocked { "unblocked" } else { "it was not blocked" });
            Ok(())
        }
        _ => bail!("{USAGE}"),
    }
}
