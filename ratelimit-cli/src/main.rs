//! The command `ratelimit`: lists the limits of running services, shows which keys are close to them or rejected by
//! them, changes limits without a deployment, and examines a Redis. `ratelimit --help` lists the commands, and
//! `docs/night.md` shows them at work.
//!
//! All settings are those of [`RateLimiterSettings::from_environment`]. The services must read their rules from this
//! Redis, with `Rules::redis()`.

mod change;
mod connection;
mod doctor;
mod fleet;
mod look;
mod prove;
mod text;
mod watch;

use std::io::{IsTerminal, Write as _, stderr, stdin, stdout};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use ratelimit_runtime::{Builder, OnError, OwnedKey, RateLimiter, RateLimiterSettings, Rules};

use crate::change::Place;
use crate::text::{Report, note, read_duration};

const AFTER_HELP: &str = "\
A LIMIT is a name, or a name and a period: api/1m. A KEY is written as in Redis: alice, (alice:42), %. In it,
hashed(TOKEN) stands for the hash of a key under RATELIMIT_KEY_SECRET.

The command reads all variables RATELIMIT_.. that a service reads, such as RATELIMIT_PASSWORD_FILE and
RATELIMIT_ROOT_CERTIFICATES. Changes of rules are signed with USER.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 `doctor` or `prove` has found something.";

const REDIS_HELP: &str = "\
The Redis of the services; RATELIMIT_REDIS_URL unless given. redis://host, with TLS rediss://host;
redis+cluster://host,host; redis+sentinel://host,host/service";

/// Shows and changes the limits of running services, and examines their Redis
#[derive(Parser)]
#[command(name = "ratelimit", version, after_help = AFTER_HELP)]
struct Arguments {
    #[arg(long, global = true, value_name = "URL", help = REDIS_HELP)]
    redis: Option<String>,
    /// The `key_prefix` of the services: `RATELIMIT_KEY_PREFIX` unless given, or rl
    #[arg(long, global = true)]
    prefix: Option<String>,
    /// Prints one document of JSON
    #[arg(long, global = true)]
    json: bool,
    /// Answers yes to all questions
    #[arg(long, global = true)]
    yes: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    OfFleet(OfFleet),
    /// Examines the Redis, and says what to do about each finding
    Doctor,
    /// Calls five limiters on the Redis for half a minute, and counts what they admit beyond the limit
    Prove,
    /// Prints completions for a shell
    Completions { shell: Shell },
}

/// The commands about limits, keys and rules.
#[derive(Subcommand)]
enum OfFleet {
    /// Lists the processes of the fleet, their limits, and the rules
    List,
    /// Prints the rule of a limit, or of one key
    Get { limit: String, key: Option<String> },
    /// Sets the rule of a limit, or of one key: 'threshold = 300', 'trial = 100', blocked, exempt
    Set {
        limit: String,
        #[arg(required = true, value_name = "[KEY] RULE")]
        words: Vec<String>,
        /// Ends the rule after this time: 30s, 1h30m
        #[arg(long, value_name = "DURATION", value_parser = read_duration)]
        r#for: Option<Duration>,
    },
    /// Removes the rule of a limit, or of one key
    Unset { limit: String, key: Option<String> },
    /// Prints all rules as JSON, for a file
    Save,
    /// Replaces all rules by those of a file of `save`, or of a file in TOML
    Restore { file: String },
    /// Prints the last changes of rules, and who made them
    Log,
    /// Prints the keys with the most rejected calls, or the fullest keys of a limit
    Top { limit: Option<String> },
    /// Prints rejected keys and changes of rules as they come, until it is stopped
    Watch,
    /// Prints the counts and the rules of a key, for all limits
    Find { key: String },
    /// Prints what is left of a key
    Peek { limit: String, key: String },
    /// Removes the count of a key
    Reset { limit: String, key: String },
    /// Rejects the calls of a key for a time: 30s, 1h30m
    Block {
        limit: String,
        key: String,
        #[arg(value_parser = read_duration)]
        duration: Duration,
    },
    /// Admits the calls of a blocked key again
    Unblock { limit: String, key: String },
}

impl OfFleet {
    /// Returns whether the command writes rules.
    fn changes_rules(&self) -> bool {
        matches!(self, Self::Set { .. } | Self::Unset { .. } | Self::Restore { .. })
    }
}

/// The Redis of a call of this program, and how it prints and asks.
pub(crate) struct Context {
    /// Without the URL, the prefix and the rules.
    pub(crate) settings: RateLimiterSettings,
    pub(crate) url: String,
    pub(crate) prefix: String,
    /// Whether the settings are those of a service with `Rules::redis()`.
    pub(crate) follows_rules: bool,
    pub(crate) is_json: bool,
    is_sure: bool,
}

/// The prefix of the services unless one is set, as in the library.
const DEFAULT_PREFIX: &str = "rl";

/// How long a call may take.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

const NO_URL: &str =
    "no Redis is named: add `--redis redis://127.0.0.1:6379`, or set RATELIMIT_REDIS_URL";

const WRONG_USAGE: u8 = 2;

/// The exit code of `doctor` and `prove` with findings, which are no failure of the command.
const HAS_FINDINGS: u8 = 3;

#[tokio::main]
async fn main() -> ExitCode {
    // Another crate of the build can bring a second cryptography, and then rustls chooses none.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let done = match Arguments::try_parse() {
        Ok(arguments) => run(arguments).await,
        Err(error) => Err(error.into()),
    };
    done.unwrap_or_else(|error| match error.downcast_ref::<clap::Error>() {
        None => {
            text::print_error(&error);
            ExitCode::FAILURE
        }
        // `--help`, which has no words of the command line.
        Some(usage) if !usage.use_stderr() => {
            let _ = usage.print();
            ExitCode::SUCCESS
        }
        Some(usage) => {
            note(usage.to_string().trim_end());
            WRONG_USAGE.into()
        }
    })
}

async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { redis, prefix, json: is_json, yes: is_sure, command } = arguments;
    let context = |url: Option<String>| {
        let mut settings = RateLimiterSettings::from_environment()?;
        let prefix = prefix.or(settings.key_prefix.take());
        let prefix = prefix.unwrap_or_else(|| DEFAULT_PREFIX.to_owned());
        let Some(url) = url.or(settings.redis_url.take()) else {
            let missing = Arguments::command().error(ErrorKind::MissingRequiredArgument, NO_URL);
            return Err(missing.into());
        };
        // This program is no service: it announces nothing, unless a command asks for the rules.
        let follows_rules = settings.rules.take().is_some_and(|rules| rules == "redis");
        anyhow::Ok(Context { settings, url, prefix, follows_rules, is_json, is_sure })
    };
    let command = match command {
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "ratelimit", &mut script);
            stdout().write_all(&script)?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Doctor => {
            let context = context(redis)?;
            return context.show(&doctor::examine(&context).await?);
        }
        Command::Prove => {
            let context = context(redis)?;
            return context.show(&prove::run(&context).await?);
        }
        Command::OfFleet(command) => command,
    };
    let context = context(redis)?;
    let limiter = &context.builder()?.rules(Rules::redis()).build()?;
    limiter.ping().await.context("Redis does not reply")?;
    if limiter.operator().fleet().await?.is_empty() {
        context.warn_of_an_absent_fleet(&command)?;
    }
    context.execute(limiter, command).await
}

impl Context {
    /// Returns a builder of the library for this Redis. A call that Redis does not decide is an error.
    pub(crate) fn builder(&self) -> anyhow::Result<Builder> {
        let builder = self.settings.builder()?.redis(&*self.url).key_prefix(&*self.prefix);
        Ok(builder.deadline(TIMEOUT).on_error(OnError::Deny))
    }

    /// Asks the operator to confirm. Without a terminal, fails unless `--yes` was given.
    pub(crate) fn confirm(&self, what: &str) -> anyhow::Result<()> {
        if self.is_sure {
            return Ok(());
        }
        let can_ask = stdin().is_terminal() && stderr().is_terminal();
        ensure!(can_ask, "{what}: to do it without a terminal that answers, add `--yes`");
        let answer = text::ask(&format!("{what}. Type yes to do it: "))?;
        ensure!(answer.trim() == "yes", "nothing was done, because the answer was not yes");
        Ok(())
    }

    fn warn_of_an_absent_fleet(&self, command: &OfFleet) -> anyhow::Result<()> {
        let alone = format!(
            "no process has announced itself under the key prefix `{}`: each one with `Rules::redis()` does so every \
             ten seconds. If the services have another `key_prefix`, write it with `--prefix`",
            self.prefix
        );
        if command.changes_rules() && !self.is_sure {
            return self.confirm(&format!("{alone}. The rules will change all the same"));
        }
        note(&alone);
        Ok(())
    }

    fn show(&self, report: &impl Report) -> anyhow::Result<ExitCode> {
        text::print(report, self.is_json)?;
        Ok(if report.has_findings() { HAS_FINDINGS.into() } else { ExitCode::SUCCESS })
    }

    async fn execute(&self, limiter: &RateLimiter, command: OfFleet) -> anyhow::Result<ExitCode> {
        let read = |key: &str| read_key(limiter, key);
        let rule_key = |key: Option<String>| key.map(|key| hashed(limiter, &key)).transpose();
        match command {
            OfFleet::List => self.show(&look::list(limiter).await?),
            OfFleet::Log => self.show(&look::log(limiter).await?),
            OfFleet::Top { limit: None } => self.show(&look::most_rejected(limiter).await?),
            OfFleet::Top { limit: Some(limit) } => {
                self.show(&look::fullest(limiter, &fleet::find(limiter, &limit).await?).await?)
            }
            OfFleet::Find { key } => self.show(&look::counts_of(limiter, &read(&key)?).await?),
            OfFleet::Peek { limit, key } => {
                let limit = fleet::find(limiter, &limit).await?;
                self.show(&look::count_of(limiter, &limit, &read(&key)?).await?)
            }
            OfFleet::Watch => watch::run(limiter, self.is_json).await,
            OfFleet::Get { limit, key } => {
                self.show(&look::rule_of(limiter, limit, rule_key(key)?).await?)
            }
            OfFleet::Set { limit, words, r#for } => {
                let (key, rule) = change::key_and_rule(&words);
                let key = rule_key(key)?;
                let place = Place { limit: &limit, key: key.as_deref() };
                self.show(&change::set(limiter, place, &rule, r#for).await?)
            }
            OfFleet::Unset { limit, key } => {
                let key = rule_key(key)?;
                let place = Place { limit: &limit, key: key.as_deref() };
                self.confirm(&format!("this removes the rule of {place}"))?;
                self.show(&change::unset(limiter, place).await?)
            }
            OfFleet::Save => self.show(&look::saved(limiter).await?),
            OfFleet::Restore { file } => {
                let restored = change::read_file(limiter, &file).await?;
                self.confirm(&format!("this replaces all rules by those of {file}"))?;
                self.show(&change::restore(limiter, &restored).await?)
            }
            OfFleet::Reset { limit, key } => {
                let (limit, key) = (fleet::find(limiter, &limit).await?.limit, read(&key)?);
                self.confirm(&format!("this removes the count of `{key}` in `{}`", limit.name()))?;
                self.show(&change::Reset { removed: limiter.reset(&limit, key).await? })
            }
            OfFleet::Block { limit, key, duration } => {
                let limit = fleet::find(limiter, &limit).await?.limit;
                limiter.block(&limit, read(&key)?, duration).await?;
                self.show(&change::Block { blocked_for_ms: text::milliseconds(duration) })
            }
            OfFleet::Unblock { limit, key } => {
                let (limit, key) = (fleet::find(limiter, &limit).await?.limit, read(&key)?);
                self.confirm(&format!("this admits `{key}` in `{}` again", limit.name()))?;
                self.show(&change::Unblock { unblocked: limiter.unblock(&limit, key).await? })
            }
        }
    }
}

fn read_key(limiter: &RateLimiter, key: &str) -> anyhow::Result<OwnedKey> {
    Ok(OwnedKey::parse(&hashed(limiter, key)?)?)
}

/// Returns a key with the hashes of the keys in its `hashed(..)`.
fn hashed(limiter: &RateLimiter, key: &str) -> anyhow::Result<String> {
    let Some((before, rest)) = key.split_once("hashed(") else { return Ok(key.to_owned()) };
    let mut depth = 1;
    let end = rest.find(|letter| {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        depth == 0
    });
    let (key, after) = rest.split_at(end.context("`hashed(` has no `)`")?);
    let hash = limiter.key_secret()?.hash(OwnedKey::parse(key)?);
    Ok(format!("{before}{hash}{}", hashed(limiter, &after[1..])?))
}
