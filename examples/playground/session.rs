//! One visitor: a key, five limits, and a task that makes the calls and sends the decisions to the page.

use std::collections::HashMap;
use std::iter;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use futures_util::future::join_all;
use ratelimit_runtime::{Check, Decision, Limit, RateLimiter, Rejection, Source};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};
use uuid::Uuid;

use crate::operator::{Choice, Operator};
use crate::settings::{Settings, StoreName, millis};
use crate::traffic::Schedule;

/// The most visitors at a time.
const SEATS: usize = 64;
/// The time between two peeks at the remaining units.
const LOOK: Duration = Duration::from_millis(100);
/// The longest time that a page may leave events unread.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Stores {
    pub(crate) embedded: RateLimiter,
    pub(crate) redis: Option<RateLimiter>,
    pub(crate) operator: Operator,
}

impl Stores {
    fn limiters(&self) -> impl Iterator<Item = &RateLimiter> {
        iter::once(&self.embedded).chain(&self.redis)
    }
}

/// The open sessions.
pub(crate) struct Sessions {
    stores: Stores,
    open: Mutex<HashMap<Uuid, mpsc::Sender<Command>>>,
}

pub(crate) enum Command {
    Call,
    Change(Box<Settings>),
    /// Reset the counts.
    Forget,
}

/// The playground has the most visitors that it allows.
pub(crate) struct Full;

/// The stream of this session has ended.
pub(crate) struct Gone;

impl Sessions {
    pub(crate) fn new(stores: Stores) -> Self {
        Self { stores, open: Mutex::default() }
    }

    pub(crate) fn has_redis(&self) -> bool {
        self.stores.redis.is_some()
    }

    /// Begins a session, which lasts until the receiver is dropped.
    pub(crate) fn open(self: &Arc<Self>) -> Result<mpsc::Receiver<Event>, Full> {
        let (id, (commands, orders), (events, watched)) =
            (Uuid::new_v4(), mpsc::channel(16), mpsc::channel(64));
        {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            if open.len() >= SEATS {
                return Err(Full);
            }
            open.insert(id, commands);
        }
        let (sessions, settings) = (Arc::clone(self), Settings::default());
        tokio::spawn(async move {
            let session = Session {
                id,
                stores: &sessions.stores,
                schedule: Schedule::new(settings.traffic, &settings.limits[0]),
                settings,
                start: Instant::now(),
                told: None,
                tally: [Tally::default(); 5],
                events,
            };
            session.run(orders).await;
            sessions.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        });
        Ok(watched)
    }

    pub(crate) async fn tell(&self, id: Uuid, command: Command) -> Result<StatusCode, Gone> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
        open.ok_or(Gone)?.send(command).await.map_err(|_| Gone)?;
        Ok(StatusCode::ACCEPTED)
    }
}

struct Session<'a> {
    id: Uuid,
    stores: &'a Stores,
    settings: Settings,
    schedule: Schedule,
    start: Instant,
    told: Option<[Lane; 5]>,
    tally: [Tally; 5],
    events: mpsc::Sender<Event>,
}

#[derive(Clone, Copy, Default)]
struct Tally {
    admitted: u64,
    refused: u64,
}

/// The first event of a session.
#[derive(Serialize)]
struct Welcome {
    id: Uuid,
    has_redis: bool,
}

/// The event of a call, or of a peek between calls. Times are in milliseconds; `at` counts from the start of the
/// session.
#[derive(Serialize)]
struct Seen {
    at: f64,
    call: bool,
    decided_by: DecidedBy,
    lanes: [Lane; 5],
}

#[derive(Clone, Copy, PartialEq, Serialize)]
struct Lane {
    allowed: bool,
    remaining: u64,
    retry: f64,
    reset: f64,
    admitted: u64,
    refused: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum DecidedBy {
    Embedded,
    Redis,
    /// Redis does not answer, so this process decides.
    Fallback,
}

/// The page has closed the stream.
struct Left;

impl Session<'_> {
    async fn run(mut self, mut orders: mpsc::Receiver<Command>) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let welcome = Welcome { id: self.id, has_redis: self.stores.redis.is_some() };
        let mut told = self.tell("welcome", &welcome).await;
        if told.is_ok() {
            told = self.tell("settings", &self.settings.shown()).await;
        }
        while told.is_ok() {
            told = tokio::select! {
                () = self.events.closed() => Err(Left),
                order = orders.recv() => match order {
                    Some(Command::Call) => self.call().await,
                    Some(Command::Change(settings)) => self.change(*settings).await,
                    Some(Command::Forget) => self.forget().await,
                    None => Err(Left),
                },
                () = self.schedule.next() => self.call().await,
                _ = looks.tick() => self.ask(false).await,
            };
        }
        self.reset().await;
        self.rule(Choice::None);
    }

    /// Makes a call, and then peeks, because the decision about an admitted call does not contain the time at
    /// which the next call passes.
    async fn call(&mut self) -> Result<(), Left> {
        self.ask(true).await?;
        self.ask(false).await
    }

    /// Checks a call against each of the five limits, or only peeks.
    async fn ask(&mut self, call: bool) -> Result<(), Left> {
        let at = millis(self.start.elapsed());
        let ask = |limit: &Limit| -> Check {
            let limiter = self.limiter();
            if call { limiter.check(limit, self.id, 1) } else { limiter.peek(limit, self.id, 1) }
        };
        let answers = join_all(self.settings.limits.iter().map(ask)).await;
        let mut decided_by = DecidedBy::Embedded;
        let mut lanes = Vec::with_capacity(5);
        for (answer, tally) in answers.iter().zip(&mut self.tally) {
            let Some(decision) = decision(answer) else {
                return Ok(());
            };
            tally.admitted += u64::from(call && decision.allowed);
            tally.refused += u64::from(call && !decision.allowed);
            decided_by = match decision.source {
                Source::Fallback => DecidedBy::Fallback,
                Source::Embedded => DecidedBy::Embedded,
                _ => decided_by.or_redis(),
            };
            lanes.push(Lane::new(&decision, *tally));
        }
        let Ok(lanes) = <[Lane; 5]>::try_from(lanes) else { unreachable!("five limits") };
        // Sends no event if nothing has changed since the last event.
        if !call && self.told == Some(lanes) {
            return Ok(());
        }
        self.told = Some(lanes);
        self.tell("seen", &Seen { at, call, decided_by, lanes }).await
    }

    async fn change(&mut self, settings: Settings) -> Result<(), Left> {
        if settings.traffic != self.settings.traffic
            || settings.limits[0] != self.settings.limits[0]
        {
            self.schedule = Schedule::new(settings.traffic, &settings.limits[0]);
        }
        // After a change of the period or of the store, the old counts are never used again.
        let counted = |settings: &Settings| (settings.store, settings.limits[0].period());
        if counted(&settings) != counted(&self.settings) {
            self.reset().await;
        }
        self.rule(Choice::None);
        self.settings = settings;
        self.rule(self.settings.rule);
        self.told = None;
        self.tell("settings", &self.settings.shown()).await
    }

    async fn forget(&mut self) -> Result<(), Left> {
        self.reset().await;
        self.tally = [Tally::default(); 5];
        self.schedule = Schedule::new(self.settings.traffic, &self.settings.limits[0]);
        self.told = None;
        self.tell("forgotten", &()).await
    }

    /// Resets all counts. If the store does not answer, its counts expire by themselves.
    async fn reset(&self) {
        join_all(self.settings.limits.iter().map(|limit| self.limiter().reset(limit, self.id)))
            .await;
    }

    /// Sets the rule for the visitor.
    fn rule(&self, choice: Choice) {
        let (Stores { operator, .. }, limiters) = (self.stores, self.stores.limiters());
        operator.set(limiters, self.id, &self.settings.limits[0], choice);
    }

    fn limiter(&self) -> &RateLimiter {
        match (self.settings.store, &self.stores.redis) {
            (StoreName::Redis, Some(redis)) => redis,
            _ => &self.stores.embedded,
        }
    }

    async fn tell(&self, name: &str, what: &impl Serialize) -> Result<(), Left> {
        let event = Event::default().event(name).json_data(what).map_err(|_| Left)?;
        self.events.send_timeout(event, PATIENCE).await.map_err(|_| Left)
    }
}

/// Returns the decision, also of a rejected call. `None` does not occur here: the limits fall back to this
/// process, and each call costs 1.
fn decision(answer: &Result<Decision, Rejection>) -> Option<Decision> {
    match answer {
        Ok(decision)
        | Err(Rejection::Limited { decision, .. } | Rejection::Blocked { decision, .. }) => {
            Some(*decision)
        }
        Err(_) => None,
    }
}

impl Lane {
    fn new(decision: &Decision, tally: Tally) -> Self {
        Self {
            allowed: decision.allowed,
            remaining: decision.remaining,
            retry: millis(decision.retry_after),
            reset: millis(decision.reset_after),
            admitted: tally.admitted,
            refused: tally.refused,
        }
    }
}

impl DecidedBy {
    /// Returns `Fallback` if Redis did not make one of the five decisions.
    fn or_redis(self) -> Self {
        if let Self::Fallback = self { self } else { Self::Redis }
    }
}

impl IntoResponse for Full {
    fn into_response(self) -> Response {
        let message = format!("the playground serves at most {SEATS} visitors: try again later");
        (StatusCode::SERVICE_UNAVAILABLE, message).into_response()
    }
}

impl IntoResponse for Gone {
    fn into_response(self) -> Response {
        (StatusCode::GONE, Json("this session has ended: reload the page")).into_response()
    }
}
