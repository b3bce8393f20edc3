use ratelimit_runtime::RateLimiter;

fn main() {
    let _ = RateLimiter::new();
}
