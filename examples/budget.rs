//! A customer buys answers of two language models, with a budget in money for each calendar month.
//!
//! ```sh
//! cargo run --example budget
//! ```
//!
//! The unit is a nano-dollar. A call is charged the most that it can cost, and settled by what its reply says. The call
//! that brings the customer to 80 % of the budget writes a warning. A service responds with a 402 when the budget is
//! used up. If `RATELIMIT_REDIS_URL` is set, all processes that use that Redis share the budget.

use std::time::Duration;

use ratelimit_runtime::{Calendar, Limit, RateLimiter, Rejection, rate_limit};

/// Ten cents a month.
const SPEND: Limit = Limit::calendar("spend", 100_000_000, Calendar::Month).notify_at(80);

/// Nano-dollars for each token: 2,500 is $2.50 for a million.
#[derive(Clone, Copy)]
struct Model {
    input: u64,
    output: u64,
    longest_answer: u64,
}

const SMALL: Model = Model { input: 150, output: 600, longest_answer: 4_000 };
const LARGE: Model = Model { input: 2_500, output: 10_000, longest_answer: 3_000 };

/// The reply of a provider, with the tokens that it charges.
struct Reply {
    input: u64,
    output: u64,
}

impl Model {
    fn cost(self, input: u64, output: u64) -> u64 {
        input * self.input + output * self.output
    }

    /// Returns the most that an answer can cost: a token has at least one byte.
    fn most(self, prompt: &str) -> u64 {
        self.cost(prompt.len() as u64, self.longest_answer)
    }
}

#[rate_limit(
    limit = SPEND,
    key = customer,
    cost = model.most(prompt),
    settle = |reply| reply.as_ref().map_or(0, |it| model.cost(it.input, it.output))
)]
async fn complete(customer: &str, model: Model, prompt: &str) -> Result<Reply, Rejection> {
    // Stands for a provider. Four bytes are about a token.
    Ok(Reply { input: prompt.len() as u64 / 4, output: model.longest_answer * 92 / 100 })
}

fn dollars(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stdout).with_ansi(false).init();
    let limiter: RateLimiter = ratelimit_runtime::current()?;
    let (customer, prompt) = ("acme", "word ".repeat(320));
    for model in [LARGE, SMALL, LARGE, LARGE, LARGE] {
        match complete(customer, model, &prompt).await {
            Ok(Reply { input, output }) => {
                limiter.flush().await?;
                let left = limiter.peek(&SPEND, customer, 0).await?;
                println!(
                    "{customer}: ${:.4} for {input} tokens in, {output} out; ${:.4} left of ${:.4}",
                    dollars(model.cost(input, output)),
                    dollars(left.remaining),
                    dollars(left.limit)
                );
            }
            Err(rejection @ Rejection::Limited { .. }) => {
                let wait = rejection.retry_after().unwrap_or(Duration::ZERO).as_secs();
                println!(
                    "{customer}: 402, the budget is used up until the month ends, in {wait} s"
                );
            }
            Err(other) => return Err(other.into()),
        }
    }
    Ok(())
}
