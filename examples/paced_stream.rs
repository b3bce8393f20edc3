//! A queue of mails whose items come at the rate that a mail server accepts.
//!
//! ```sh
//! cargo run --example paced_stream
//! ```
//!
//! The program sends twelve mails, five a second. It takes about two seconds. If `RATELIMIT_REDIS_URL` is set, all
//! programs that use that Redis share the rate: to see it, start the program twice.

use std::time::{Duration, Instant};

use anyhow::Context;
use futures::{StreamExt, stream};
use ratelimit_runtime::stream::RateLimitStreamExt;
use ratelimit_runtime::{Limit, OnError};

/// Five mails a second, evenly spaced. While Redis is down, the program ends: with a limit per process, a fleet would
/// send too fast.
const MAILS: Limit =
    Limit::leaky_bucket("mails", 5, Duration::from_secs(1)).on_error(OnError::Deny);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // Reads RATELIMIT_REDIS_URL now: a wrong URL ends the program before the first mail.
    ratelimit_runtime::current().context("RATELIMIT_REDIS_URL")?;
    let start = Instant::now();
    let queue = stream::iter(1..=12);
    let mut mails = queue.rate_limited(&MAILS, "smtp.example.com");
    while let Some(mail) = mails.next().await {
        send(mail?, start);
    }
    Ok(())
}

/// Stands for a client of a mail server.
fn send(mail: u32, start: Instant) {
    println!("{:4.1} s  mail {mail} is sent", start.elapsed().as_secs_f64());
}
