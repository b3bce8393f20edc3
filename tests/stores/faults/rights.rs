//! The rights that a Redis user needs: the lines of "What Redis holds", as an operator pastes them.

use ratelimit_runtime::{Clock, Rule, Rules};
use redis::{Commands, Connection, RedisResult, Value};

use super::*;

const PAGE: &str = include_str!("../../../docs/redis.md");

/// Returns the words of the line in the guide that begins with `ACL SETUSER` and has the user `name`.
fn line_of(name: &str) -> Vec<&'static str> {
    let start = format!("ACL SETUSER {name} ");
    let line = PAGE.lines().find(|line| line.starts_with(&start)).expect("a line of the guide");
    line.split(' ').collect()
}

/// Creates the user of a line, and returns a URL with the user.
fn create(server: &Server, line: &[&str]) -> String {
    server.command::<()>(&line.join(" "));
    server.url.replace("redis://", &format!("redis://{}:password@", line[2]))
}

fn open(url: &str) -> RedisResult<Connection> {
    redis::Client::open(url).expect("a URL").get_connection()
}

fn run(connection: &mut Connection, words: &[&str]) -> RedisResult<Value> {
    redis::cmd(words[0]).arg(&words[1..]).query(connection)
}

#[tokio::test]
async fn the_documented_rights_are_sufficient_and_necessary() {
    let server = Server::start();
    let line = line_of("limiter");
    // Without the user, the password and `reset`.
    let rights = line[3..].iter().copied().filter(|word| word.starts_with(['~', '%', '+']));
    for left_out in rights.map(Some).chain([None]) {
        let some: Vec<_> = line.iter().copied().filter(|word| Some(*word) != left_out).collect();
        let limiter = denying_builder(&create(&server, &some)).build().expect("valid");
        let result = use_all_operations(&limiter, left_out.unwrap_or("all")).await;
        assert_eq!(result.is_ok(), left_out.is_none(), "{some:?}: {result:?}");
        if let Err(error @ StoreError::Server { .. }) = &result {
            assert_advises(error, "NOPERM", "allow this user");
        }
    }
}

/// A line of `ACL SETUSER` adds to the rights that a user of this name has.
#[tokio::test]
async fn the_documented_line_takes_every_other_right_away() {
    let server = Server::start();
    server.command::<()>("ACL SETUSER limiter on >other ~* +@all");
    let url = create(&server, &line_of("limiter"));
    let mut connection = open(&url).expect("the new password");
    run(&mut connection, &["GET", "another key"]).expect_err("a key of another application");
    run(&mut connection, &["CONFIG", "GET", "dir"]).expect_err("another command");
    open(&url.replace(":password@", ":other@")).map(drop).expect_err("the old password");
}

#[tokio::test]
async fn a_database_and_another_clock_need_one_more_right_each() {
    let server = Server::start();
    let line = line_of("limiter");
    for (other, right, database, clock) in
        [(Some("+time"), "+select", "/3", Clock::Store), (None, "+pttl", "", Clock::Client)]
    {
        assert!(PAGE.contains(&format!("`{right}`")), "the page does not list {right}");
        for is_allowed in [false, true] {
            let mut some: Vec<_> = line.iter().copied().filter(|one| *one != "+time").collect();
            some.extend(other.into_iter().chain(Some(right).filter(|_| is_allowed)));
            let url = create(&server, &some) + database;
            let limiter = denying_builder(&url).clock(clock.clone()).build().expect("valid");
            let result = use_all_operations(&limiter, right).await;
            assert_eq!(result.is_ok(), is_allowed, "{right}: {result:?}");
            server.command::<()>("FLUSHALL");
        }
    }
}

#[rate_limit(period = 60, threshold = 5, name = "api", key = user)]
async fn api(user: &str) -> Result<(), Rejection> {
    Ok(())
}

/// A service that is taken over can then not exempt its calls, or those of others.
#[tokio::test]
async fn a_service_reads_the_rules_and_cannot_write_them() {
    let server = Server::start();
    let known = run(&mut server.connection(), &["COMMAND", "INFO", "eval_ro"]);
    if known.expect("COMMAND INFO") == Value::Array(vec![Value::Nil]) {
        // Redis 6.2 has no right to read only, as the guide says.
        return;
    }
    let operator = create(&server, &line_of("operator"));
    let service = create(&server, &line_of("limiter"));
    create(&server, &line_of("limiter %R~rl:{rules}"));
    let build = |url: &str| denying_builder(url).rules(Rules::redis()).build().expect("valid");

    let tool = build(&operator);
    let share = async |limiter: &RateLimiter, key: &str| {
        let mut shared = limiter.operator().shared_rules().await?;
        shared.rules.set_key("api", key, Rule::new().blocked(true)).expect("a rule");
        limiter.operator().share_rules(shared, "alice").await
    };
    share(&tool, "mallory").await.expect("an operator may");
    tool.operator().rule_changes(10).await.expect("an operator may");
    tool.operator().fleet().await.expect("an operator may");

    let limiter = build(&service);
    limiter.ping().await.expect("the rules are read");
    // The limiter obeys the rules, and has announced itself.
    wait_until(async || {
        let result = limiter.scope(api("mallory")).await;
        let announced: RedisResult<bool> = server.connection().exists("rl:{rules}:processes");
        matches!(result, Err(Rejection::Blocked { .. })) && announced.expect("EXISTS")
    })
    .await;
    share(&limiter, "bob").await.expect_err("a service may not");
    let mut connection = open(&service).expect("on");
    let by_script = "return redis.call(ARGV[1], KEYS[1])";
    for command in ["DEL", "UNLINK"] {
        run(&mut connection, &[command, "rl:{rules}"]).expect_err("a service may not");
        let script = ["EVAL", by_script, "1", "rl:{rules}", command];
        run(&mut connection, &script).expect_err("a service may not");
    }
    run(&mut connection, &["SET", "rl:{rules}:changes", "x"]).expect_err("nor the changes");
    assert!(server.connection().exists("rl:{rules}").is_ok_and(|exists: bool| exists));
}

/// Returns the error of a call that was not decided.
fn decided<T>(result: Result<T, Rejection>) -> Result<(), StoreError> {
    match result {
        Err(Rejection::Unavailable { error, .. }) => Err(error),
        _ => Ok(()),
    }
}

/// Uses all operations of a limiter.
async fn use_all_operations(limiter: &RateLimiter, key: &str) -> Result<(), StoreError> {
    for algorithm in ALGORITHMS {
        let limit = Limit::new("least", algorithm, 40, MINUTE).expect("valid");
        for cost in [1, 1, limit.capacity()] {
            decided(limiter.check(&limit, key, cost).await)?;
        }
        limiter.credit(&limit, key, 100).await?;
        decided(limiter.check_all(&[Part::new(&limit, &key, 1)]).await)?;
        limiter.reset(&limit, key).await?;
    }
    let in_flight = Limit::in_flight("least", 2).hold(MINUTE);
    match limiter.acquire(&in_flight, key, 1).await {
        Ok(permit) => permit.release().await?,
        undecided => decided(undecided)?,
    }
    limiter.reset(&in_flight, key).await?;
    limiter.ping().await?;
    // Concurrent calls share scripts.
    let bucket = Limit::token_bucket("shared", 5, MINUTE);
    let calls = (0..32).map(|number| limiter.check(&bucket, (key, number), 1));
    for result in calls.collect::<JoinSet<_>>().join_all().await {
        decided(result)?;
    }
    // The log is long enough to be rewritten and to have a segment.
    let long = Limit::sliding("long", 5_000, MINUTE);
    for _ in 0..4_200 {
        decided(limiter.check(&long, key, 1).await)?;
    }
    limiter.reset(&long, key).await.map(drop)
}
