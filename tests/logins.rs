//! A day of guesses at the password of Ann, on a virtual clock. It makes the table of the guide `recipes.md`, "How do I
//! protect a login?".

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ratelimit_runtime::{Client, RateLimiter, Rejection, VirtualClock, rate_limit};
use support::clocks::embedded_on;
use support::poll_once;

const GUIDE: &str = include_str!("../docs/recipes.md");

/// A try to log in as Ann.
struct Try {
    client: Client,
    /// The device whose cookie the request has.
    device: Option<u64>,
    is_right: bool,
}

/// Whether the password is right.
type LoginResult = Result<bool, Rejection>;

fn is_wrong(result: &LoginResult) -> bool {
    *result == Ok(false)
}

#[rate_limit(
    limit(name = "user", period = "15m", threshold = 5),
    limit(name = "client", period = "1m", threshold = 20, key = login.client),
    count_if = is_wrong, limiter = limiter
)]
async fn by_user(limiter: &RateLimiter, login: &Try) -> LoginResult {
    Ok(login.is_right)
}

#[rate_limit(
    limit(name = "user and client", period = "15m", threshold = 5, key = login.client),
    limit(name = "client", period = "1m", threshold = 20, key = login.client),
    count_if = is_wrong, limiter = limiter
)]
async fn by_user_and_client(limiter: &RateLimiter, login: &Try) -> LoginResult {
    Ok(login.is_right)
}

#[rate_limit(
    limit(name = "user and client", period = "15m", threshold = 5, key = login.client),
    limit(name = "user", period = "1d", threshold = 1_000),
    limit(name = "client", period = "1m", threshold = 20, key = login.client),
    count_if = is_wrong, limiter = limiter
)]
async fn with_a_day(limiter: &RateLimiter, login: &Try) -> LoginResult {
    Ok(login.is_right)
}

#[rate_limit(
    limit(name = "guesses", period = "15m", threshold = 5, key = (login.device, login.client)),
    limit(name = "user", period = "1d", threshold = 1_000, key = login.device),
    limit(name = "client", period = "1m", threshold = 20, key = login.client),
    count_if = is_wrong, limiter = limiter
)]
async fn with_devices(limiter: &RateLimiter, login: &Try) -> LoginResult {
    Ok(login.is_right)
}

/// Plays a day in which each of some addresses guesses once a second, and Ann tries once a minute. Returns how many
/// guesses are checked, and how many tries of Ann are rejected.
fn day(
    log_in: &impl AsyncFn(&RateLimiter, &Try) -> LoginResult,
    addresses: u8,
    device: Option<u64>,
) -> (usize, usize) {
    let clock = VirtualClock::new();
    let limiter = embedded_on(&clock);
    let client = |number| Client::from(IpAddr::V4(Ipv4Addr::new(203, 0, 113, number)));
    let ann = Try { client: client(0), device, is_right: true };
    let guess = |number| Try { client: client(number), device: None, is_right: false };
    let guesses: Vec<Try> = (1..=addresses).map(guess).collect();
    let (mut checked, mut rejected) = (0, 0);
    for second in 0..24 * 3600 {
        let results = guesses.iter().map(|guess| poll_once(log_in(&limiter, guess)));
        checked += results.filter(is_wrong).count();
        if second % 60 == 59 {
            rejected += usize::from(poll_once(log_in(&limiter, &ann)).is_err());
        }
        clock.advance(Duration::from_secs(1));
    }
    (checked, rejected)
}

#[test]
fn a_day_of_guesses_costs_what_the_guide_says() {
    let row = |name: &str, day: &dyn Fn(u8) -> (usize, usize)| {
        let days = [1, 2, 3].map(day).map(|(checked, rejected)| format!("{checked} / {rejected}"));
        let row = format!("| {name} | {} |", days.join(" | "));
        assert!(GUIDE.contains(&row), "not in the guide:\n{row}");
    };
    row("`user`: 5 in 15 minutes", &|addresses| day(&by_user, addresses, None));
    row("`(user, client)`: 5 in 15 minutes", &|addresses| {
        day(&by_user_and_client, addresses, None)
    });
    row("and `user`: 1,000 a day", &|addresses| day(&with_a_day, addresses, None));
    row("and counts of known devices", &|addresses| day(&with_devices, addresses, Some(7)));
}
