//! Wrong arguments of the attribute, with the place and the message of each error, as `mistakes.txt` shows them. What
//! the compiler reports, and mistakes in functions, are in `tests/attribute`.
//!
//! After a change of a message, `SNAPSHOTS=overwrite tests/run --test shapes mistakes` rewrites the file. Read the
//! difference before you commit it.

use std::fmt::Write as _;
use std::fs;

const MESSAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/shapes/mistakes.txt");

const FUNCTION: &str = "call(id: u8, user_id: u8, user: User, prompt: String, times: Vec<u8>)";

const MISTAKES: &[&str] = &[
    // Words.
    r#"period = 30, threshold = 2, algo = "slidng""#,
    r#"period = 30, threshold = 2, algo = "leaky-bucket""#,
    r#"period = 30, threshold = 2, algo = "magic""#,
    r#"period = 30, threshold = 2, algo = "sliding_window""#,
    r#"period = 30, threshold = 2, algo = "GCRA""#,
    r#"period = 30, threshold = 2, algo = "fixed-window""#,
    "period = 30, threshold = 2, algo = sliding",
    "period = 30, threshold = 2, algo = 3",
    r#"period = 30, threshold = 2, scope = "proces""#,
    r#"period = 30, threshold = 2, scope = "cluster""#,
    "period = 30, threshold = 2, scope = process",
    r#"period = 30, threshold = 2, on_error = "open""#,
    "period = 30, threshold = 2, on_error = |error| panic!()",
    r#"period = 30, threshold = 2, shadow = "true""#,
    r#"period = 30, threshold = 2, hidden = "true""#,
    "limit(period = 30, threshold = 2, hidden = yes)",
    "period = 30, threshold = 2, dry_run = true",
    "period = 30, threshold = 2, name = NAME",
    // Periods.
    "period = 30s, threshold = 2",
    "period = 0.5h, threshold = 2",
    "period = 30u64, threshold = 2",
    r#"period = "30", threshold = 2"#,
    r#"period = "s", threshold = 2"#,
    r#"period = "5 minutes", threshold = 2"#,
    r#"period = "2w", threshold = 2"#,
    r#"period = "1M", threshold = 2"#,
    r#"period = "30m1h", threshold = 2"#,
    "period = 0, threshold = 2",
    "period = -30, threshold = 2",
    r#"period = "-30s", threshold = 2"#,
    "period = 0.0000015, threshold = 2",
    r#"period = "36525d 1us", threshold = 2"#,
    "period = true, threshold = 2",
    "period = 1e3, threshold = 2",
    r#"period = "", threshold = 2"#,
    // Amounts.
    "period = 30, threshold = 0",
    "period = 30, threshold = 2.5",
    r#"period = 30, threshold = "2""#,
    "period = 30, threshold = 1_000_000_000_000_000",
    r#"period = 30, threshold = 2, algo = "token_bucket", burst = 0"#,
    r#"period = "365d", threshold = 1, algo = "leaky_bucket", burst = 101"#,
    "period = 30, threshold = 2, burst = 5",
    r#"period = 30, threshold = 2, algo = "sliding_counter", burst = 5"#,
    "period = 30, threshold = 2, cost = -1",
    r#"period = 30, threshold = 2, cost = "2""#,
    "period = 30, threshold = 2, cost = 3",
    r#"period = 30, threshold = 10, algo = "token_bucket", burst = 2, cost = 3"#,
    r#"period = 30, threshold = 10, algo = "leaky_bucket", cost = 2"#,
    "period = 30, threshold = 2, lease = 0",
    r#"period = 30, threshold = 2, lease = "50""#,
    "period = 30, threshold = 2, lease = 3",
    r#"period = "50ms", threshold = 100, lease = 10"#,
    r#"period = 30, threshold = 2, algo = "leaky_bucket", lease = 1"#,
    r#"period = 1, threshold = 1_000, algo = "token_bucket", burst = 20, lease = 11"#,
    r#"period = 1, threshold = 1_000, algo = "token_bucket", burst = 20, lease = 5, cost = 11"#,
    r#"period = 30, threshold = 2, scope = "process", lease = 2"#,
    "period = 30, threshold = 2, wait = 1, lease = 2",
    "limit(period = 30, threshold = 2), lease = 2",
    "limit(period = 30, threshold = 2, lease = 2)",
    r#"period = 30, threshold = 99, lease = "auto""#,
    r#"period = 30, threshold = 1_000, algo = "token_bucket", burst = 50, lease = "auto""#,
    "period = 30, threshold = 1_000, lease = auto",
    r#"period = 30, threshold = 1_000, lease = "adaptive""#,
    r#"period = 30, threshold = 1_000, lease = "auto", settle = |_| 1"#,
    "period = 30, threshold = 2, prefetch = 2",
    r#"in_flight = 2, hold = "30s", scope = "process""#,
    r#"in_flight = 2, hold = "30s", period = "1m", threshold = 5"#,
    r#"in_flight = 2, hold = "30s", algo = "fixed", burst = 2, align = "utc", lease = 5"#,
    r#"in_flight = 2, hold = "30s", settle = |_| 1"#,
    r#"in_flight = 0, hold = "500ms""#,
    r#"in_flight = 1, hold = "2d", cost = 2"#,
    r#"period = 1, threshold = 5, hold = "30s""#,
    r#"concurrent = 5, hold = "30s""#,
    // Aligned windows.
    r#"period = "1d", threshold = 2, align = "utc""#,
    r#"period = "1d", threshold = 2, algo = "token_bucket", align = "+08:00""#,
    r#"period = "1d", threshold = 2, algo = "fixed", align = "UTC""#,
    r#"period = "1d", threshold = 2, algo = "fixed", align = "+14:01""#,
    r#"period = "1d", threshold = 2, algo = "fixed", align = "Asia/Shanghai""#,
    r#"period = "1d", threshold = 2, algo = "fixed", align = +8"#,
    r#"period = "1d", threshold = 2, algo = "fixed", align = "month""#,
    r#"period = "7h", threshold = 2, algo = "fixed", align = "utc""#,
    r#"period = "36h", threshold = 2, algo = "fixed", align = "utc""#,
    r#"period = "30d", threshold = 2, algo = "fixed", align = "utc""#,
    // Names of arguments.
    "period = 30, treshold = 2",
    "window = 30, max = 2",
    "period = 30, threshold = 2, colour = |a, b| { red }",
    "period = 30, threshold = 2, key = user_id, tenant, groups = (a, b)",
    "period = 30, threshold = 2, user_id",
    "per_second = 10, key = user_id",
    r#"period = 30, threshold = 2, store = "redis", ttl = 60, error = "slow down""#,
    "30, 2",
    "10",
    "10, period = 60",
    "0.5",
    "period = 30, threshold = 2, period = 60",
    "period = 30 threshold = 0",
    "period = 30; threshold = 0",
    "period 30, threshold(2)",
    "period = 30, threshold = 2, key",
    "period = , threshold = 2, key = ",
    "period = 30, threshold = 2, key = id + , cost = 1",
    r#"rate = "5/m", key = user"#,
    r#"tokens = 5, period = "1m", key = user"#,
    r#"period = "15m", threshold = 5, key = user, lockout = "15m""#,
    r#"period = "15m", threshold = 5, key = user, only_failures = true"#,
    r#"period = "1m", threshold = 5, ip = true"#,
    r#"period = "1m", threshold = 5, per_user = true"#,
    r#"period = "1m", threshold = 5, key = |user| user.id"#,
    r#"period = 1, threshold = 5, retry = "5s""#,
    "period = 1, threshold = 5, wait = true",
    "period = 30, threshold = 2, wait = 0",
    r#"period = 30, threshold = 2, scope = "process", on_error = "deny""#,
    r#"period = 30, threshold = 2, shadow = true, wait = "1s""#,
    r#"period = 30, threshold = 2, timeout = "5 minutes""#,
    "period = 1, threshold = 5, permits = 2",
    "period = 1, threshold = 5, fallback = busy",
    r#"period = 1, threshold = 5, name = "export.{user}""#,
    "LOGIN",
    // Keys.
    r#"period = 30, threshold = 2, key = "user:{id""#,
    r#"period = 30, threshold = 2, key = "{id}}""#,
    r#"period = 30, threshold = 2, key = "{a{id}}""#,
    r#"period = 30, threshold = 2, key = "{}:{0}""#,
    r#"period = 30, threshold = 2, key = "{id.to_string()}""#,
    r#"period = 30, threshold = 2, key = "{id:width$}""#,
    r#"period = 30, threshold = 2, key = "{user.type}""#,
    "period = 30, threshold = 2, key = hashed()",
    "period = 30, threshold = 2, key = (1, hashed(a, b))",
    r#"period = 30, threshold = 2, key = hashed("{token}")"#,
    "period = 30, threshold = 2, key = #user_id",
    "period = 30, threshold = 2, key = (a, a, a, a, a, a, a, a, a)",
    // Texts, constants and groups.
    r#""2 each 30s""#,
    r#""10/fortnight", key = user"#,
    r#"key = user, "10/s""#,
    r#""10/s", period = 30"#,
    r#""10/s burst 20 fixed""#,
    r#""10/s", cost = 11"#,
    r#""10/s burst 20", algo = "fixed""#,
    r#""5/minute 30s""#,
    r#""5//s""#,
    r#"limit = LOGIN, period = 30, algo = "fixed", name = "login", wait = "1s""#,
    "limit = 100, period = 30",
    r#"limit = "login""#,
    "limit = plan",
    r#"limit = Limit::fixed("login", 1, Duration::from_secs(1))"#,
    "limit = LOGIN, limit(limit = LOGIN)",
    r#"limit = LOGIN, threshold = 0, burst = "many""#,
    "limit = LOGIN, lease = 0",
    r#"limit(period = 1, threshold = 2), period = 30, algo = "fixed""#,
    r#"limit(period = 1, threshold = 2, scope = "process", shadow = true)"#,
    r#"limit(period = 1), limit(threshold = 0, period = "1h"), limit()"#,
    r#"limit(period = 1, threshold = 2, limit(period = "1h", threshold = 3))"#,
    "limit = 5",
    "limit { period = 1, threshold = 2 }",
    r#"limit(period = 1, treshold = 2, algo = "fixed", burst = 2), limits(period = 1)"#,
    r#"limits("10/s", key = user)"#,
    r#"limit(period = 1, threshold = 5), limit(period = "1h", threshold = 3, cost = 4), cost = 4"#,
    r#"limit(period = 1, threshold = 2, cost = 1), limit(period = "1h", threshold = 3), cost = 4"#,
    r#"limit("5/m", name = "api"), limit("50/h", name = "api"), limit("10/m", name = "api")"#,
    "limit(period = 1, threshold = 5) limit(period = 60, threshold = 1)",
    "limit(period = 1, threshold = 5) key = user",
    "limit(period = 1, threshold = 5) && limit(period = 60, threshold = 1)",
    // Paths and functions.
    r#"period = 30, threshold = 2, limiter = "redis""#,
    "limit(period = 30, threshold = 2, limiter = state.limiter)",
    r#"period = 30, threshold = 2, crate = "facade::limits""#,
    "period = 30, threshold = 2, crate = facade::limits()",
    r#"period = 30, threshold = 2, on_limited = "slow down""#,
    "period = 30, threshold = 2, on_limited = async |_| 429",
    "period = 30, threshold = 2, on_limited = |_| async { 429 }",
    r#"period = 30, threshold = 2, on_limited = "busy""#,
    "period = 30, threshold = 2, on_limited = busy(user)",
    // Corrections and blocks.
    "period = 1, threshold = 10, settle = 5",
    r#"period = 1, threshold = 10, settle = "tokens""#,
    "period = 1, threshold = 10, settle = async |result| 5",
    "period = 1, threshold = 10, count_if = |result| async { true }",
    "period = 1, threshold = 10, count_if = true",
    r#"period = 1, threshold = 10, permit = "tokens""#,
    "period = 1, threshold = 10, settle = |_| 1, count_if = Result::is_err",
    "period = 1, threshold = 10, count_if = Result::is_err, permit = tokens",
    "period = 1, threshold = 10, settle = |_| 1, lease = 5",
    "period = 1, threshold = 10, permit = tokens, lease = 5",
    "limit(period = 1, threshold = 10), settle = |_| 1",
    "limit(period = 1, threshold = 10), permit = tokens",
    "period = 1, threshold = 10, settle = |_| prompt.len() as u64",
    r#"period = 1, threshold = 10, block = "30s""#,
    "period = 1, threshold = 10, block = |_| None, lease = 5",
    "period = 1, threshold = 10, block = |_| times.first().copied()",
    "period = 1, threshold = 10, retry_after = |_| None",
    "period = 1, threshold = 10, actual_cost = |_| 1",
    "limit(period = 1, threshold = 10), limit(limit = TENANT, key = tenant), block = retry_after",
    r#"limit(period = 1, threshold = 10, block = retry_after), limit(limit = TENANT), block_at_most = "5m""#,
    r#"period = 1, threshold = 10, block_at_most = "5m""#,
    r#"limit(period = 1, threshold = 10, block_at_most = "5m")"#,
    "period = 1, threshold = 10, block = retry_after, block_at_most = 0",
    r#"period = 1, threshold = 10, block = retry_after, block_at_most = "5 minutes""#,
    r#"period = 1, threshold = 10, block = retry_after, max_block = "5m""#,
];

/// Mistakes that depend on the function.
const MISTAKES_OF_FUNCTIONS: &[(&str, &str)] = &[
    ("keys(user: u64)", r#"limit(period = 1, threshold = 5, key = "{usr}"), key = "{nobody}""#),
    ("several(user_id: u64, (tenant, _): (u8, u8))", r#""1/s", key = "{usr_id}:{ip}""#),
    ("none()", r#""1/s", key = "{user_id}""#),
    ("method<const N: usize>(&self, r#type: u8)", r#""1/s", key = "{tenant}""#),
    ("call(user_id: u64)", r#""1/s", key = "user_id""#),
    ("call(name: String, id: u64)", r##""1/s", key = "#id""##),
    ("call(user_id: u64)", r#""1/s", key = "userId""#),
    ("call()", r#""1/s", key = "everybody""#),
    ("call(limiter: u64, peer: u64)", r#""1/s", key = "proxies""#),
    ("call()", r#""1/s", key = """#),
    ("call() -> impl Debug", "period = 1, threshold = 10, settle = |_| 1"),
    ("call() -> impl Debug", "period = 1, threshold = 10, block = |_| None"),
    ("call((_, tokens): (u8, u64))", "period = 1, threshold = 10, permit = tokens"),
    (
        "call()",
        "limit(period = 1, threshold = 10, permit = tokens), limit(period = 60, threshold = 10, permit = tokens)",
    ),
];

#[test]
fn each_mistake_is_reported_at_its_place() {
    let mut shown = String::new();
    let mistakes = MISTAKES.iter().map(|mistake| (FUNCTION, *mistake));
    for (function, mistake) in mistakes.chain(MISTAKES_OF_FUNCTIONS.iter().copied()) {
        writeln!(shown, "{mistake}").expect("a text");
        let function = format!("async fn {function} {{ None }}");
        let errors = expander::errors(mistake, &function).expect("tokens");
        assert!(!errors.is_empty(), "no mistake: {mistake}");
        for (columns, message) in errors {
            let (before, place) = (" ".repeat(columns.start), "^".repeat(columns.len()));
            writeln!(shown, "{before}{place} {message}").expect("a text");
        }
        shown.push('\n');
    }
    if std::env::var_os("SNAPSHOTS").is_some_and(|mode| mode == "overwrite") {
        fs::write(MESSAGES, &shown).expect("written");
    }
    let kept = fs::read_to_string(MESSAGES).expect("the messages");
    for (shown, kept) in shown.split("\n\n").zip(kept.split("\n\n")) {
        assert!(shown == kept, "this is reported:\n\n{shown}\n\nand not this:\n\n{kept}");
    }
    assert_eq!(shown.len(), kept.len(), "mistakes are missing");
}
