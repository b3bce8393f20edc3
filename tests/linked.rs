//! What a program contains: the algorithm that its limits name, and nothing else that it does not name. This test
//! names all of it, so its own program shows that the symbols are right.

use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{env, fs};

use ratelimit_runtime::{Limit, RateLimiter, RuleSet};

const SECOND: Duration = Duration::from_secs(1);

/// Parts of symbols, each of a function of something that a program can leave out.
const LEFT_OUT: [&str; 6] = [
    "algorithm..fixed..Window$u20$as",
    "algorithm..sliding..Log$u20$as",
    "algorithm..sliding_counter..Counters$u20$as",
    "algorithm..slots..Slots$u20$as",
    "7waiting4line",
    "rules..table..RuleTable$u20$as",
];

/// A part of the symbols of functions of a bucket.
const BUCKET: &str = "9algorithm6bucket";

fn symbols(program: &Path) -> String {
    String::from_utf8_lossy(&fs::read(program).expect("a program")).into_owned()
}

#[tokio::test]
async fn a_program_contains_no_algorithm_that_its_limits_do_not_name() {
    let limiter = RateLimiter::embedded();
    for limit in [
        Limit::token_bucket("bucket", 1, SECOND),
        Limit::fixed("fixed", 1, SECOND),
        Limit::sliding("sliding", 1, SECOND).wait(SECOND),
        Limit::sliding_counter("sliding_counter", 1, SECOND),
        Limit::in_flight("in_flight", 1),
    ] {
        drop(limiter.acquire(&limit, "key", 1).await.expect("admitted"));
    }
    limiter.set_rules(RuleSet::new()).expect("valid");
    let own = symbols(&env::current_exe().expect("a path"));

    let program = Path::new(env!("CARGO_BIN_EXE_one_algorithm"));
    assert!(Command::new(program).status().expect("it starts").success());
    let other = symbols(program);

    assert!(own.contains(BUCKET) && other.contains(BUCKET));
    for left_out in LEFT_OUT {
        assert!(own.contains(left_out), "no symbol has `{left_out}`: is this its name?");
        assert!(!other.contains(left_out), "a program without it contains `{left_out}`");
    }
}
