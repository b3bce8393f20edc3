//! The five algorithms on one stream of calls, then the attribute at work.
//!
//! ```sh
//! cargo run --example quickstart
//! RATELIMIT_REDIS_URL=redis://127.0.0.1:6379 cargo run --example quickstart   # the same on Redis
//! ```
//!
//! First, the program draws a picture on virtual time: which calls each algorithm admits, and how many units
//! remain after each call. Then it calls `say_hi` in real time. A call is rejected, waits for `retry_after`, and is
//! admitted. The program takes about five seconds.

use std::error::Error;
use std::fmt::Write;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use ratelimit_runtime::{
    Clock, Decision, Limit, OnError, RateLimiter, Rejection, VirtualClock, rate_limit,
};

const PERIOD: Duration = Duration::from_secs(5);

const ALGORITHMS: [(Limit, &str); 5] = [
    (Limit::sliding("quickstart", 5, PERIOD), "never more than 5 in any 5 s, exactly"),
    (
        Limit::fixed("quickstart", 5, PERIOD),
        "one count per window; around its end, up to 10 can pass",
    ),
    (
        Limit::sliding_counter("quickstart", 5, PERIOD),
        "two counts and an estimate; nearly as exact as sliding",
    ),
    (
        Limit::token_bucket("quickstart", 5, PERIOD),
        "5 at once, then one a second, as tokens refill",
    ),
    (Limit::leaky_bucket("quickstart", 5, PERIOD), "no bursts; one a second, evenly spaced"),
];

/// Each column is a quarter of a second: one call early in a window, a burst around the end of the window,
/// one call a second, another burst, and again one call a second.
const CALLS: &str = "x...............xxxxxxxxxx......x...x...x...xxxxxxxx....x...x...";
const COLUMN: Duration = Duration::from_millis(250);

#[rate_limit(period = 3, threshold = 2, algo = "sliding", key = name)]
async fn say_hi(name: &str) -> Result<String, Rejection> {
    Ok(format!("hi {name}"))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let shown = async {
        draw_algorithms().await?;
        call_say_hi().await
    };
    let Err(error) = shown.await else { return ExitCode::SUCCESS };
    eprintln!("\nerror: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        eprintln!("because: {error}");
        cause = error.source();
    }
    ExitCode::FAILURE
}

async fn draw_algorithms() -> Result<(), Box<dyn Error>> {
    // Windows of the sliding counter begin at multiples of the period: this is the start of one.
    let start = Duration::from_secs(1_800_000_000);
    let clock = VirtualClock::at(start);
    let mut builder = RateLimiter::builder().clock(Clock::Virtual(clock.clone()));
    if let Some(url) = std::env::var("RATELIMIT_REDIS_URL").ok().filter(|url| !url.is_empty()) {
        // With `Deny`, the picture shows decisions of Redis only.
        builder = builder.redis(url).deadline(Duration::from_secs(2)).on_error(OnError::Deny);
    }
    let limiter = builder.build()?;
    // A new key for each run: on Redis, an earlier run may have left counts.
    let key = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos();

    println!("\nFive algorithms, 5 calls per 5 seconds each, one stream of calls:\n");
    let mut seconds = String::new();
    for second in 0..CALLS.len() / 4 {
        write!(seconds, "{second:<4}")?;
    }
    println!("  seconds    {seconds}");
    println!("  calls      {}", CALLS.replace('x', "▪").replace('.', " "));
    for (limit, comment) in ALGORITHMS {
        let mut decisions = String::new();
        let mut remaining = String::new();
        let mut admitted = 0;
        for (column, call) in CALLS.chars().enumerate() {
            clock.set(start + COLUMN * column as u32);
            if call == '.' {
                decisions.push('·');
                remaining.push(' ');
                continue;
            }
            let decision = decide(&limiter, &limit, key).await?;
            admitted += u32::from(decision.allowed);
            decisions.push_str(&if decision.allowed { paint("●", 32) } else { paint("✕", 31) });
            remaining.push_str(&decision.remaining.to_string());
        }
        println!("\n{}: {comment}", limit.algorithm());
        println!("  decisions  {decisions}  {admitted} admitted");
        println!("  remaining  {}", paint(&remaining, 2));
    }
    println!("\n{} admitted   {} rejected   · no call\n", paint("●", 32), paint("✕", 31));
    Ok(())
}

/// Returns the decision, also of a rejected call.
async fn decide(limiter: &RateLimiter, limit: &Limit, key: u128) -> Result<Decision, Rejection> {
    match limiter.check(limit, key, 1).await {
        Err(Rejection::Limited { decision, .. }) => Ok(decision),
        other => other,
    }
}

async fn call_say_hi() -> Result<(), Box<dyn Error>> {
    println!("#[rate_limit(period = 3, threshold = 2, algo = \"sliding\", key = name)]");
    println!("async fn say_hi(name: &str) -> Result<String, Rejection>\n");
    let start = Instant::now();
    for name in ["ann", "bob", "ann", "ann", "bob"] {
        loop {
            let at = start.elapsed().as_secs_f64();
            match say_hi(name).await {
                Ok(answer) => println!("{at:4.1} s  say_hi(\"{name}\")  {}", paint(&answer, 32)),
                Err(rejection) => {
                    println!(
                        "{at:4.1} s  say_hi(\"{name}\")  {}",
                        paint(&rejection.to_string(), 31)
                    );
                    // `None`: no wait helps, for example if Redis is down. The program ends.
                    let wait = rejection.retry_after().ok_or(rejection)?;
                    println!("        waiting {wait:.1?}, as `retry_after` says");
                    tokio::time::sleep(wait).await;
                    continue;
                }
            }
            break;
        }
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    println!();
    Ok(())
}

fn paint(text: &str, color: u8) -> String {
    if colors() { format!("\u{1b}[{color}m{text}\u{1b}[0m") } else { text.to_owned() }
}

fn colors() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}
