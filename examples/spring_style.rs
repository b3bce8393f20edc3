//! The greeting of the Java tutorials: at most two calls per 30 seconds, then a polite rejection.
//!
//! ```sh
//! cargo run --example spring_style
//! ```
//!
//! In Spring, this takes an annotation on a method, an aspect around the method, and a Lua script or a sorted set in
//! Redis:
//!
//! ```java
//! @RateLimit(period = 30, count = 2, key = "#userId")
//! public String sayHi(Long userId) { ... }
//! ```
//!
//! Here, this takes the attribute alone. A misspelled argument, a period of zero, or a key that does not exist is a
//! compile error. The program prints two greetings for each user and a rejection of the third call, then three
//! broadcasts and a rejection of the fourth.

use ratelimit_runtime::{Rejection, rate_limit};

struct Greeter {
    greeting: &'static str,
}

impl Greeter {
    /// Counts each user separately. A rejected call returns a text.
    #[rate_limit(
        period = 30,
        threshold = 2,
        key = "user:{user_id}",
        on_limited = |rejection| format!("not so fast: {rejection}")
    )]
    async fn say_hi(&self, user_id: u64) -> String {
        format!("{}, user {user_id}!", self.greeting)
    }

    /// Counts all users together. The caller handles the rejection.
    #[rate_limit(period = 30, threshold = 3, algo = "fixed", name = "greeter.broadcast")]
    async fn broadcast(&self) -> Result<String, Rejection> {
        Ok(format!("{}, everybody!", self.greeting))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let greeter = Greeter { greeting: "Hi" };
    for user_id in [1, 1, 1, 2, 2, 2] {
        println!("say_hi({user_id}): {}", greeter.say_hi(user_id).await);
    }
    for _ in 0..4 {
        match greeter.broadcast().await {
            Ok(text) => println!("broadcast(): {text}"),
            Err(Rejection::Limited { name, decision, .. }) => println!(
                "broadcast(): `{name}` admits {} per 30 s, the next in {:.1?}",
                decision.limit, decision.retry_after
            ),
            Err(other) => println!("broadcast(): {other}"),
        }
    }
}
