//! Where a limiter reads its rules: a file, or Redis. The background thread looks for new rules, and reports those of
//! no limit: their names may be mistyped.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::io;
use std::mem;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::file::{FileReader, RulesFile};
use super::fleet::{MOST_REJECTED, announce, process_id, read_announcements};
use super::replace_rules;
use crate::backend::Backend;
use crate::limit::Period;
use crate::registry;
use crate::reply::{BuildError, StoreError};
use crate::report;
use crate::rules::{RuleSet, RuleSetError, RulesInForce};
use crate::store::{RuleStore, StoredRules};
use crate::text::closest::closest;

/// How often the background thread looks for new rules.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How often it looks into Redis: once in this many looks.
const LOOKS_INTO_REDIS: u32 = 2;

/// How often a process announces its limits: once in this many looks.
const LOOKS_PER_ANNOUNCEMENT: u32 = 20;

/// Where a limiter reads its rules: [`Builder::rules`](crate::Builder::rules).
#[derive(Clone, Debug)]
#[cfg_attr(docsrs, doc(cfg(feature = "rules")))]
pub struct Rules(RulesSource);

#[derive(Clone, Debug)]
enum RulesSource {
    File(PathBuf),
    Redis,
}

impl Rules {
    /// Reads rules from a file, and again when it changes: JSON if its name ends in `.json`, otherwise TOML. See
    /// [`RuleSet::from_toml`](crate::RuleSet::from_toml).
    ///
    /// If the file cannot be read or has a mistake, building the limiter fails. Later, the rules in force stay, and an
    /// `ERROR` event reports the mistake. To change the file, write a new one beside it and rename it: the limiter can
    /// read one half of a file that is written in place.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self(RulesSource::File(path.into()))
    }

    /// Reads the rules that [`Operator::share_rules`](crate::Operator::share_rules) writes into the Redis of the
    /// limiter, and again when they change.
    ///
    /// The limiter reads them for the first time in the background, as soon as it is built. Until then, and if Redis is
    /// down, the limits are as the code says; [`RateLimiter::ping`](crate::RateLimiter::ping) succeeds once the rules
    /// were read. If Redis goes down later, the rules in force stay.
    #[must_use]
    pub fn redis() -> Self {
        Self(RulesSource::Redis)
    }
}

/// The source of the rules of a limiter, and what was last read from it.
pub(crate) struct RuleFeed {
    source: FeedSource,
    rules: Weak<RulesInForce>,
    backend: Weak<Backend>,
    unseen: Mutex<UnseenReport>,
    /// The result of the last attempt to read rules from Redis, until one has succeeded.
    first_read: watch::Sender<Option<Result<(), StoreError>>>,
    /// Notified when a caller waits for the first read.
    wanted: Arc<Notify>,
}

enum FeedSource {
    File(PathBuf, Mutex<RulesFile>),
    Redis,
}

/// The rules that the background thread has last read from Redis.
#[derive(Default)]
struct SharedState {
    was_read: bool,
    /// The version that was read last. Rules with a mistake are not in force.
    version: String,
    in_force: String,
    /// The last error, which was reported.
    mistake: Option<String>,
    /// Whether Redis has lost the rules.
    is_lost: bool,
    /// The version of the registered limits that this process has announced, and that of the rules.
    announced: (usize, String),
}

impl SharedState {
    /// Reports once that Redis has lost the rules, and once that it has rules again.
    fn set_lost(&mut self, is_lost: bool) {
        if is_lost != mem::replace(&mut self.is_lost, is_lost) {
            report::rules_lost(&self.in_force, is_lost);
        }
    }

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
    /// Reads the rules, and looks for new ones from then on.
    pub(crate) fn start(
        source: Rules,
        rules: &Arc<RulesInForce>,
        backend: &Arc<Backend>,
    ) -> Result<Arc<Self>, BuildError> {
        let source = match source.0 {
            RulesSource::File(path) => {
                let (file, set) = RulesFile::open(path.clone()).map_err(invalid)?;
                replace_rules(rules, backend, set)
                    .map_err(|error| invalid(file.in_file(&error)))?;
                FeedSource::File(path, Mutex::new(file))
            }
            RulesSource::Redis if backend.shared_store().is_some() => FeedSource::Redis,
            RulesSource::Redis => return Err(BuildError::RulesWithoutRedis),
        };
        let (rules, backend_ref) = (Arc::downgrade(rules), Arc::downgrade(backend));
        let unseen = Mutex::new(UnseenReport::new());
        let (first_read, wanted) = (watch::Sender::new(None), Arc::default());
        let feed =
            Arc::new(Self { source, rules, backend: backend_ref, unseen, first_read, wanted });
        backend.background().spawn_resident(&feed, |feed| Self::follow(Arc::downgrade(&feed)));
        Ok(feed)
    }

    /// Looks for new rules until the limiter is dropped.
    async fn follow(feed: Weak<Self>) {
        let (mut look, mut shared, files) = (0_u32, SharedState::default(), FileReader::default());
        while let Some(feed) = feed.upgrade() {
            feed.look(look, &mut shared, &files).await;
            feed.report_unseen(&shared.in_force).await;
            let wanted = Arc::clone(&feed.wanted);
            drop(feed);
            look = look.wrapping_add(1);
            let _ = timeout(LOOK_EVERY, wanted.notified()).await;
        }
    }

    /// Returns the error of `set_rules` on a limiter with a feed.
    pub(super) fn owns_rules(&self) -> RuleSetError {
        RuleSetError::new(match &self.source {
            FeedSource::File(path, _) => {
                format!("this limiter reads its rules from `{}`: change them there", path.display())
            }
            FeedSource::Redis => {
                "this limiter reads its rules from Redis: change them with `share_rules`".to_owned()
            }
        })
    }

    /// Waits until the background thread has read the rules in Redis for the first time, within a deadline. A caller
    /// does not read them itself: its runtime may stand still in between.
    pub(in crate::limiter) async fn ready(&self) -> Result<(), StoreError> {
        let Some(backend) = self.backend.upgrade() else { return Ok(()) };
        backend.background().revive();
        if matches!(self.source, FeedSource::File(..)) {
            return Ok(());
        }
        let mut read = self.first_read.subscribe();
        if matches!(&*read.borrow_and_update(), Some(Ok(()))) {
            return Ok(());
        }
        self.wanted.notify_one();
        let deadline = backend.deadline();
        let late = Err(StoreError::Timeout { deadline });
        match timeout(deadline, read.changed()).await {
            Ok(Ok(())) => read.borrow().clone().unwrap_or(late),
            _ => late,
        }
    }

    /// Reads the rules if they have changed. A feed from Redis also announces this process there.
    async fn look(&self, look: u32, shared: &mut SharedState, files: &FileReader) {
        match &self.source {
            FeedSource::Redis if look.is_multiple_of(LOOKS_INTO_REDIS) || !shared.was_read => {
                let read = self.read_shared(shared).await;
                shared.report(read.as_ref().err());
                self.first_read.send_if_modified(|first| {
                    let is_open = !matches!(first, Some(Ok(())));
                    if is_open {
                        *first = Some(read);
                    }
                    is_open
                });
                let limits = registry::version();
                let announced = (limits, shared.in_force.clone());
                let is_new = announced != mem::replace(&mut shared.announced, announced.clone());
                // Tools have no limits.
                if limits > 0
                    && (is_new || look.is_multiple_of(LOOKS_PER_ANNOUNCEMENT))
                    && let Some(backend) = self.backend.upgrade()
                    && let Some(store) = backend.shared_store()
                {
                    let rejected = backend.rejected_keys(MOST_REJECTED);
                    let _ = announce(store, &shared.in_force, &rejected).await;
                }
            }
            FeedSource::Redis => {}
            FeedSource::File(path, file) => {
                let text = files.read(path).await;
                self.apply_file(&mut lock(file), text);
            }
        }
    }

    fn apply_file(&self, file: &mut RulesFile, text: io::Result<String>) {
        match file.changed(text) {
            Ok(None) => {}
            Ok(Some(set)) => {
                let replaced = self.replace(set).map_err(|error| file.in_file(&error));
                file.report(replaced);
            }
            Err(error) => file.report(Err(error)),
        }
    }

    async fn read_shared(&self, state: &mut SharedState) -> Result<(), StoreError> {
        let Some(backend) = self.backend.upgrade() else { return Ok(()) };
        let Some(store) = backend.shared_store() else { return Ok(()) };
        let read = store.read_rules(&state.version).await?;
        state.was_read = true;
        // `share_rules` always writes a version, also of rules without an entry.
        let is_lost =
            !state.version.is_empty() && read.as_ref().is_some_and(|read| read.version.is_empty());
        state.set_lost(is_lost);
        let Some(StoredRules { version, rules }) = read.filter(|_| !is_lost) else {
            return Ok(());
        };
        let set = if version.is_empty() { Ok(RuleSet::new()) } else { RuleSet::from_json(&rules) };
        match set.and_then(|set| self.replace(set)) {
            Ok(()) => {
                state.in_force.clone_from(&version);
                tracing::info!(version, "the rate limits follow new rules");
            }
            Err(error) => tracing::error!(
                version,
                %error,
                "the rules in Redis have a mistake, so the rules in force stay"
            ),
        }
        state.version = version;
        Ok(())
    }

    fn replace(&self, set: RuleSet) -> Result<(), RuleSetError> {
        if let (Some(rules), Some(backend)) = (self.rules.upgrade(), self.backend.upgrade()) {
            replace_rules(&rules, &backend, set)?;
            *lock(&self.unseen) = UnseenReport::new();
        }
        Ok(())
    }

    /// Reports rules that match no limit, once for each set of rules. `version` is that of the rules in force.
    async fn report_unseen(&self, version: &str) {
        let is_due = lock(&self.unseen).is_due();
        let Some(rules) = self.rules.upgrade().filter(|_| is_due) else { return };
        match &self.source {
            FeedSource::File(..) => report_of_process(&rules),
            FeedSource::Redis => {
                let backend = self.backend.upgrade();
                if let Some(store) = backend.as_ref().and_then(|backend| backend.shared_store()) {
                    report_of_fleet(&rules, version, store).await;
                }
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn invalid(error: impl fmt::Display) -> BuildError {
    BuildError::InvalidRules { message: error.to_string().into() }
}

/// How long rules are in force before they are reported. A process has not called all of its limits when it has just
/// started.
const UNSEEN_FOR: Duration = Duration::from_secs(60);

/// The longest random time after that, so that the processes of a fleet do not all ask Redis at one moment.
const MOST_JITTER_MS: u64 = 20_000;

/// The most announced names that can be the nearest one.
const MOST_NAMES: usize = 10_000;

/// When the rules in force are to be compared with the limits; `None` once they were.
struct UnseenReport(Option<Instant>);

impl UnseenReport {
    pub(super) fn new() -> Self {
        let random = RandomState::new().hash_one(0);
        let jitter = Duration::from_millis(random % MOST_JITTER_MS);
        Self(Some(Instant::now() + UNSEEN_FOR + jitter))
    }

    /// Returns whether the rules are to be reported now, once.
    fn is_due(&mut self) -> bool {
        self.0.take_if(|at| Instant::now() >= *at).is_some()
    }
}

/// Reports the rules that no call of this process has asked for.
fn report_of_process(rules: &RulesInForce) {
    let known = registry::limits();
    for rule in rules.unasked() {
        let nearest = closest(&rule.name, known.iter().map(|known| known.limit.name()));
        tracing::warn!(
            rule = rule.written,
            nearest,
            "no call of this process has a limit with the name of this rule"
        );
    }
}

/// The names of an announcement, to be compared with the names in rules. They are not kept in memory, because a process
/// can announce any number of them.
#[derive(serde::Deserialize)]
struct AnnouncedNames {
    limits: Vec<AnnouncedName>,
    #[serde(default)]
    left_out: usize,
}

#[derive(serde::Deserialize)]
struct AnnouncedName {
    limit: NameAndPeriod,
}

#[derive(serde::Deserialize)]
struct NameAndPeriod {
    name: String,
    period: String,
}

/// Reports the rules that no process of the fleet has a limit for. The first process to ask reads the announcements.
async fn report_of_fleet(rules: &RulesInForce, version: &str, store: &impl RuleStore) {
    let mut unasked = rules.unasked();
    if unasked.is_empty() || !matches!(store.claim_report(version, &process_id()).await, Ok(true)) {
        return;
    }
    let (mut names, mut is_whole) = (HashSet::new(), true);
    let read = |text: &str| {
        let Ok(AnnouncedNames { limits, left_out }) = serde_json::from_str(text) else {
            return Ok(());
        };
        is_whole &= left_out == 0;
        for AnnouncedName { limit: NameAndPeriod { name, period } } in limits {
            let period = Period::parse(&period);
            unasked.retain(|rule| !period.is_some_and(|period| rule.is_of(&name, period)));
            if names.len() < MOST_NAMES {
                names.insert(name);
            }
        }
        Ok(())
    };
    if read_announcements(store, read).await.is_err() || !is_whole {
        return;
    }
    for rule in unasked {
        let nearest = closest(&rule.name, names.iter().map(String::as_str));
        tracing::warn!(
            rule = rule.written,
            nearest,
            "no limit that the running processes have announced has the name of this rule"
        );
    }
}
