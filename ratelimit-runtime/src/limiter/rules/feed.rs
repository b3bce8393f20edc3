//! Where a limiter reads its rules: a file, or Redis. The background thread looks for new rules, and reports those of
//! no limit: their names may be mistyped.

use std::collections::HashSet;
use std::mem;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::file::{self, RulesFile};
use super::fleet::{MOST_REJECTED, announcement, process_id, read_announcements};
use crate::backend::Backend;
use crate::check::Checker;
use crate::limit::Period;
use crate::registry;
use crate::reply::{BuildError, StoreError};
use crate::report;
use crate::rules::{RuleSet, RuleSetError, RulesInForce};
use crate::store::{SharedStore, StoredRules};
use crate::text::closest::closest;
use crate::waiting::Waiting;

/// How often the background thread looks into a file. It reads a changed file twice.
const FILE_EVERY: Duration = Duration::from_millis(500);

/// How often the background thread looks into Redis.
const REDIS_EVERY: Duration = Duration::from_secs(1);

/// How often a process announces its limits: once in this many looks into Redis.
const LOOKS_PER_ANNOUNCEMENT: u32 = 10;

/// Where a limiter reads its rules: [`Builder::rules`](crate::Builder::rules).
#[derive(Clone, Debug)]
pub struct Rules {
    /// `None` for the rules in Redis.
    path: Option<PathBuf>,
}

impl Rules {
    /// Reads rules from a file, and again when it changes: JSON if its name ends in `.json`, otherwise TOML. See
    /// [`RuleSet::from_toml`](crate::RuleSet::from_toml).
    ///
    /// If the file cannot be read or has a mistake, building the limiter fails. Later, the rules in force stay, and an
    /// `ERROR` event reports the mistake. To change the file, write a new one beside it and rename it: the limiter can
    /// read one half of a file that is written in place.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self { path: Some(path.into()) }
    }

    /// Reads the rules that [`Operator::share_rules`](crate::Operator::share_rules) writes into the Redis of the
    /// limiter, and again when they change.
    ///
    /// The limiter reads them for the first time in the background, as soon as it is built. Until then, and if Redis is
    /// down, the limits are as the code says; [`RateLimiter::ping`](crate::RateLimiter::ping) succeeds once the rules
    /// were read. If Redis goes down later, the rules in force stay.
    #[must_use]
    pub fn redis() -> Self {
        Self { path: None }
    }
}

/// The source of the rules of a limiter.
pub(crate) struct RuleFeed {
    /// The path of the file; `None` for the rules in Redis.
    path: Option<PathBuf>,
    rules: Arc<RulesInForce>,
    backend: Arc<Backend>,
    waiting: Arc<Waiting>,
    /// The result of the last attempt to read rules from Redis, until one has succeeded; a timeout before the first.
    first_read: watch::Sender<Result<(), StoreError>>,
    /// Notified when a caller waits for the first read.
    wanted: Arc<Notify>,
}

/// What the background thread has done so far.
#[derive(Default)]
struct FeedProgress {
    looks: u32,
    /// When the rules in force are to be compared with the limits; `None` once they were.
    report_at: Option<Instant>,
    /// The version that was read last from Redis. Rules with a mistake are not in force.
    version: String,
    in_force: String,
    /// The last error, which was reported.
    mistake: Option<String>,
    /// Whether Redis has lost the rules.
    is_lost: bool,
    /// The version of the registered limits that this process has announced, and that of the rules.
    announced: (usize, String),
}

impl FeedProgress {
    /// Reports an error of Redis once. It does not report that Redis is down: the calls report that.
    fn report(&mut self, error: Option<&StoreError>) {
        let is_reply = |error: &&StoreError| {
            matches!(error, StoreError::Server { .. } | StoreError::ForeignKey { .. })
        };
        let message = error.filter(is_reply).map(ToString::to_string);
        if let Some(error) = message.as_ref().filter(|_| self.mistake != message) {
            tracing::error!(error, "the rules in Redis cannot be read, so the rules in force stay");
        }
        self.mistake = message;
    }
}

impl RuleFeed {
    /// Reads the rules from their source, and looks for new ones from then on.
    pub(crate) fn start(source: Rules, checker: &Checker) -> Result<Arc<Self>, BuildError> {
        let Checker { rules, backend, waiting, .. } = checker;
        let path = source.path;
        if path.is_none() && backend.shared.is_none() {
            return Err(BuildError::RulesWithoutRedis);
        }
        let mut applied = String::new();
        if let Some(path) = &path {
            let (set, text) = file::open(path)?;
            waiting.replace_rules(set);
            applied = text;
        }
        let (rules, backend, waiting) =
            (Arc::clone(rules), Arc::clone(backend), Arc::clone(waiting));
        let late = StoreError::Timeout { deadline: backend.settings.deadline };
        let (first_read, wanted) = (watch::Sender::new(Err(late)), Arc::default());
        let feed = Arc::new(Self { path, rules, backend, waiting, first_read, wanted });
        let background = &feed.backend.background;
        background.spawn_resident(&feed, move |feed| {
            let file = feed.path.clone().map(|path| RulesFile::new(path, applied.clone()));
            Self::follow(Arc::downgrade(&feed), file)
        });
        Ok(feed)
    }

    /// Looks for new rules until the limiter is dropped.
    async fn follow(feed: Weak<Self>, mut file: Option<RulesFile>) {
        let report_at = Some(Instant::now() + UNSEEN_FOR);
        let mut progress = FeedProgress { report_at, ..FeedProgress::default() };
        while let Some(feed) = feed.upgrade() {
            let pause = if let Some(file) = &mut file {
                if let Some(set) = file.look().await {
                    feed.replace(set, &mut progress.report_at);
                }
                FILE_EVERY
            } else {
                feed.look_into_redis(&mut progress).await;
                REDIS_EVERY
            };
            if progress.report_at.take_if(|at| Instant::now() >= *at).is_some() {
                feed.report_unseen(&progress.in_force).await;
            }
            let wanted = Arc::clone(&feed.wanted);
            drop(feed);
            progress.looks = progress.looks.wrapping_add(1);
            let _ = timeout(pause, wanted.notified()).await;
        }
    }

    /// Returns the error of `set_rules` on a limiter with a feed.
    pub(in crate::limiter) fn owns_rules(&self) -> RuleSetError {
        let place = match &self.path {
            Some(path) => format!("`{}`: change them there", path.display()),
            None => "Redis: change them with `share_rules`".to_owned(),
        };
        RuleSetError::new(format_args!("this limiter reads its rules from {place}"))
    }

    /// Waits until the background thread has read the rules in Redis for the first time, within a deadline. A caller
    /// does not read them itself: its runtime may stand still in between.
    pub(in crate::limiter) async fn ready(&self) -> Result<(), StoreError> {
        self.backend.background.revive();
        if self.path.is_some() {
            return Ok(());
        }
        let mut read = self.first_read.subscribe();
        if read.borrow_and_update().is_err() {
            self.wanted.notify_one();
            let deadline = self.backend.settings.deadline;
            if timeout(deadline, read.changed()).await.is_err() {
                return Err(StoreError::Timeout { deadline });
            }
        }
        read.borrow().clone()
    }

    /// Reads the rules in Redis if they have changed, and announces this process there.
    async fn look_into_redis(&self, progress: &mut FeedProgress) {
        let Some(store) = self.backend.shared.as_ref() else { return };
        let read = self.read_shared(store, progress).await;
        progress.report(read.as_ref().err());
        if self.first_read.borrow().is_err() {
            let _ = self.first_read.send_replace(read);
        }
        let limits = registry::version();
        let announced = (limits, progress.in_force.clone());
        let is_new = announced != mem::replace(&mut progress.announced, announced.clone());
        // Tools have no limits.
        if limits > 0 && (is_new || progress.looks.is_multiple_of(LOOKS_PER_ANNOUNCEMENT)) {
            let (process, rejected) = (process_id(), self.backend.rejected_keys(MOST_REJECTED));
            let version = &progress.in_force;
            let text = announcement(process.clone(), version, registry::limits(), rejected);
            let _ = store.announce(&process, &text).await;
        }
    }

    async fn read_shared(
        &self,
        store: &SharedStore,
        progress: &mut FeedProgress,
    ) -> Result<(), StoreError> {
        let read = store.read_rules(&progress.version).await?;
        // `share_rules` always writes a version, also of rules without an entry.
        let is_lost = !progress.version.is_empty()
            && read.as_ref().is_some_and(|read| read.version.is_empty());
        if is_lost != mem::replace(&mut progress.is_lost, is_lost) {
            report::rules_lost(&progress.in_force, is_lost);
        }
        let Some(StoredRules { version, rules }) = read.filter(|_| !is_lost) else {
            return Ok(());
        };
        let set = if version.is_empty() { Ok(RuleSet::new()) } else { RuleSet::from_json(&rules) };
        match set {
            Ok(set) => {
                self.replace(set, &mut progress.report_at);
                progress.in_force.clone_from(&version);
                tracing::info!(version, "the rate limits follow new rules");
            }
            Err(error) => tracing::error!(
                version,
                %error,
                "the rules in Redis have a mistake, so the rules in force stay"
            ),
        }
        progress.version = version;
        Ok(())
    }

    /// Replaces the rules in force, which are then reported later.
    fn replace(&self, set: RuleSet, report_at: &mut Option<Instant>) {
        self.waiting.replace_rules(set);
        *report_at = Some(Instant::now() + UNSEEN_FOR);
    }

    /// Reports the rules in force, of this version, that match no limit.
    async fn report_unseen(&self, version: &str) {
        let unasked = self.rules.table().map(|table| table.unasked()).unwrap_or_default();
        match &self.backend.shared {
            _ if unasked.is_empty() => {}
            Some(store) if self.path.is_none() => report_of_fleet(unasked, version, store).await,
            _ => {
                let limits = registry::limits();
                let names = limits.iter().map(|known| known.limit.name().to_owned()).collect();
                report_unseen(unasked, &names, "no call of this process has a limit with");
            }
        }
    }
}

/// How long rules are in force before they are reported. A process has not called all of its limits when it has just
/// started.
const UNSEEN_FOR: Duration = Duration::from_secs(60);

/// The most announced names that can be the nearest one.
const MOST_NAMES: usize = 10_000;

/// Reports rules, each with the nearest of these names. `finding` says that no limit has the name of the rule.
fn report_unseen(unasked: RuleSet, names: &HashSet<String>, finding: &str) {
    for (limit, rules) in unasked.limits {
        let nearest = closest(&limit.name, names.iter().map(String::as_str));
        tracing::warn!(rule = rules.written, nearest, "{finding} the name of this rule");
    }
}

/// Reports the rules that no process of the fleet has a limit for. The first process to ask reads the announcements.
async fn report_of_fleet(mut unasked: RuleSet, version: &str, store: &SharedStore) {
    if !matches!(store.claim_report(version, &process_id()).await, Ok(true)) {
        return;
    }
    let (mut names, mut is_whole) = (HashSet::new(), true);
    // Announced limits are not kept in memory, because a process can announce any number of names.
    let read = |text: &str| {
        let process: Value = serde_json::from_str(text).unwrap_or_default();
        is_whole &= process["left_out"].as_u64().unwrap_or(0) == 0;
        for announced in process["limits"].as_array().into_iter().flatten() {
            let [name, period] = ["name", "period"].map(|field| announced["limit"][field].as_str());
            let Some(name) = name else { continue };
            let period = period.and_then(Period::parse);
            // Calls in flight have no period.
            unasked.limits.retain(|limit, rules| {
                rules.written != name && (&*limit.name, limit.period) != (name, period)
            });
            if names.len() < MOST_NAMES {
                names.insert(name.to_owned());
            }
        }
        Ok(())
    };
    if read_announcements(store, read).await.is_ok() && is_whole {
        report_unseen(unasked, &names, "no limit that the running processes have announced has");
    }
}
