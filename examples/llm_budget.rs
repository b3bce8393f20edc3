//! Teams that share a language model: each has a budget of tokens a second, and is charged what its calls really use.
//!
//! ```sh
//! cargo run --example llm_budget
//! ```
//!
//! A call can use up to 1,000 tokens, so it is charged 1,000 before it runs. It uses about 100. Once it has its answer,
//! `settle` corrects the charge, and the other 900 tokens admit nine more calls. A streaming answer takes a permit
//! along, and settles it with its last word. The program prints what was estimated and what was used, and how much of
//! the budget: a little less than all of it, because calls that run hold their estimates.
//!
//! If `RATELIMIT_REDIS_URL` is set, all processes that use that Redis share the budgets.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use ratelimit_runtime::{Limit, Permit, Rejection, rate_limit};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::JoinSet;
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);
const BUDGET: u64 = 20_000;
const ESTIMATE: u64 = 1_000;
const REQUESTS: Limit = Limit::fixed("llm.requests", 2_000, SECOND);
const TOKENS: Limit = Limit::sliding("llm.tokens", BUDGET, SECOND);

struct Answer {
    tokens: u64,
}

#[rate_limit(
    limit(limit = REQUESTS, key = team),
    limit(
        limit = TOKENS,
        key = team,
        cost = ESTIMATE,
        settle = |result| result.as_ref().map_or(0, |answer| answer.tokens)
    )
)]
async fn complete(team: &str, model: &Model) -> Result<Answer, Rejection> {
    Ok(model.answer().await)
}

#[rate_limit(limit = TOKENS, key = team, cost = ESTIMATE, permit = tokens)]
async fn stream(team: &str, model: &Arc<Model>) -> Result<Receiver<&'static str>, Rejection> {
    Ok(Arc::clone(model).stream(tokens))
}

/// Stands for a provider. It counts the tokens of its answers, each at the start of its call.
#[derive(Default)]
struct Model {
    used: Mutex<Vec<(Instant, u64)>>,
}

impl Model {
    async fn answer(&self) -> Answer {
        let start = Instant::now();
        sleep(Duration::from_millis(20)).await;
        let tokens = self.count(start, 80);
        Answer { tokens }
    }

    fn stream(self: Arc<Self>, permit: Permit) -> Receiver<&'static str> {
        let (words, stream) = channel(1);
        tokio::spawn(async move {
            let (start, mut sent) = (Instant::now(), 0);
            for word in ["It ", "was ", "a ", "dark ", "and ", "stormy ", "night."] {
                // A reader who goes away ends the answer. It has used the words up to here.
                if words.send(word).await.is_err() {
                    break;
                }
                sent += 1;
                sleep(Duration::from_millis(5)).await;
            }
            permit.settle(self.count(start, sent * 20));
        });
        stream
    }

    /// Records an answer of `tokens` tokens, and some more that differ from call to call.
    fn count(&self, start: Instant, tokens: u64) -> u64 {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let tokens = tokens + (used.len() * 7 % 40) as u64;
        used.push((start, tokens));
        tokens
    }
}

/// Calls the model for `time`, and returns the number of calls.
async fn work(number: usize, model: Arc<Model>, time: Duration) -> anyhow::Result<u64> {
    let (end, mut calls) = (Instant::now() + time, 0);
    while Instant::now() < end {
        let result = if number == 0 {
            match stream("acme", &model).await {
                Ok(mut words) => {
                    while words.recv().await.is_some() {}
                    Ok(())
                }
                Err(rejection) => Err(rejection),
            }
        } else {
            complete("acme", &model).await.map(drop)
        };
        match result {
            Ok(()) => calls += 1,
            Err(rejection) => sleep(rejection.retry_after().context("no decision")?).await,
        }
    }
    Ok(calls)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let limiter = ratelimit_runtime::current().context("RATELIMIT_REDIS_URL")?;
    let (model, time) = (Arc::new(Model::default()), 5 * SECOND);
    let (start, mut workers) = (Instant::now(), JoinSet::new());
    for number in 0..8 {
        workers.spawn(work(number, Arc::clone(&model), time));
    }
    let mut calls = 0;
    while let Some(worker) = workers.join_next().await {
        calls += worker??;
    }
    limiter.flush().await?;

    let used = model.used.lock().unwrap_or_else(PoisonError::into_inner);
    let since = |from: Instant| {
        let within = used.iter().filter(move |(at, _)| *at >= from && *at < from + SECOND);
        within.map(|(_, tokens)| tokens).sum::<u64>()
    };
    let most = used.iter().map(|(at, _)| since(*at)).max().unwrap_or(0);
    let tokens: u64 = used.iter().map(|(_, tokens)| tokens).sum();
    let share = tokens as f64 / time.as_secs_f64() / BUDGET as f64 * 100.0;
    println!(
        "{calls} calls in {:.0} s: {} tokens estimated, {tokens} used",
        start.elapsed().as_secs_f64(),
        calls * ESTIMATE
    );
    println!("the most in any second: {most} of {BUDGET}");
    println!(
        "used of the budget: {share:.0} %, and {:.0} % without settling",
        share * tokens as f64 / (calls * ESTIMATE) as f64
    );
    Ok(())
}
