//! Values of the attribute, and return values of functions, that have another type or do not exist.

use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};

const SECONDS: u64 = 30;
const CALLS: u64 = 2;

struct User { id: u64 }
struct Prompt { text: String }
struct Failure;

// Amounts: constants of another type, and expressions that are neither `u64` nor `Option<u64>`.

#[rate_limit(period = SECONDS, threshold = CALLS)]
async fn constants() -> Option<()> { None }

#[rate_limit(period = 30, threshold = plan.len())]
async fn a_usize(plan: &str) -> Option<()> { None }

#[rate_limit(period = 30, threshold = 2, algo = "token_bucket", burst = factor * 2.0)]
async fn a_float(factor: f64) -> Option<()> { None }

#[rate_limit(period = 30, threshold = Some("5"))]
async fn a_text() -> Option<()> { None }

#[rate_limit(period = 30, threshold = 2, cost = items.len())]
async fn cost(items: Vec<u8>) -> Option<()> { None }

#[rate_limit(period = 30, threshold = 2, key = "{user}", cost = items.len() / 2)]
async fn cost_beside_a_format(user: u64, items: Vec<u8>) -> Option<()> { None }

#[rate_limit(limit(period = 30, threshold = 2), limit(period = 60, threshold = 3), cost = items.len() / 2)]
async fn cost_of_groups(items: Vec<u8>) -> Option<()> { None }

// Keys.

#[rate_limit(period = 30, threshold = 2, key = user)]
async fn key_alone(user: User) -> Option<u64> { Some(user.id) }

#[rate_limit(period = 30, threshold = 2, key = (user.id, user))]
async fn key_in_a_tuple(user: User) -> Option<u64> { Some(user.id) }

#[rate_limit(period = 30, threshold = 2, key = usr.id)]
async fn key_misspelled(user: User) -> Option<u64> { Some(user.id) }

#[rate_limit(period = 30, threshold = 2, key = addr)]
async fn key_with_a_port(addr: std::net::SocketAddr) -> Option<u16> { Some(addr.port()) }

#[rate_limit(limit(period = 30, threshold = 2), limit(period = 60, threshold = 3, key = user), key = 1)]
async fn key_in_a_group(user: User) -> Option<u64> { Some(user.id) }

#[rate_limit(period = 30, threshold = 2, key = "{user}")]
async fn not_display(user: User) -> Option<u64> { Some(user.id) }

#[rate_limit(period = 30, threshold = 2, key = "{user.name}")]
async fn no_such_field(user: User) -> Option<u64> { Some(user.id) }

#[rate_limit(period = 30, threshold = 2, key = "{id:q}")]
async fn no_such_trait(id: u64) -> Option<u64> { Some(id) }

// Functions of the return value, and arguments that the body has moved.

#[rate_limit(period = 1, threshold = 10, settle = |result: &u64| *result)]
async fn another_argument() -> Result<u64, Rejection> { Ok(1) }

#[rate_limit(period = 1, threshold = 10, settle = |result| result.is_ok())]
async fn another_result() -> Result<u64, Rejection> { Ok(1) }

#[rate_limit(period = 1, threshold = 10, count_if = Result::ok)]
async fn another_function() -> Result<u64, Rejection> { Ok(1) }

#[rate_limit(period = 1, threshold = 10, settle = |_| prompt.text.len() as u64)]
async fn moved(prompt: Prompt) -> Result<String, Rejection> { Ok(prompt.text) }

#[rate_limit(period = 1, threshold = 10, block = |_| std::time::Duration::ZERO)]
async fn blocks_always() -> Result<u64, Rejection> { Ok(5) }

// Rejections and limiters.

#[rate_limit(period = 30, threshold = 2)]
async fn plain() -> String { String::new() }

#[rate_limit(period = 30, threshold = 2)]
async fn nothing() {}

#[rate_limit(period = 30, threshold = 2)]
async fn foreign_error() -> Result<(), Failure> { Ok(()) }

#[rate_limit(period = 30, threshold = 2)]
async fn hidden() -> impl std::fmt::Display { "hi" }

#[rate_limit(period = 30, threshold = 2, on_limited = |rejection: Rejection| rejection.name())]
async fn other_output() -> u16 { 200 }

fn busy() -> u16 { 429 }

#[rate_limit(period = 30, threshold = 2, on_limited = busy)]
async fn no_parameter() -> u16 { 200 }

#[rate_limit(period = 30, threshold = 2, limiter = prompt.text)]
async fn another_limiter(prompt: Prompt) -> Option<()> { Some(drop(prompt)) }

fn main() {
    let _ = RateLimiter::new();
}
