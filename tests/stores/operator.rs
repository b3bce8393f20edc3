//! What an operator is told: the rights a user needs, and what to do about what the server says.

use std::time::{Duration, Instant};

use ratelimit_runtime::{Clock, Limit, Part, RateLimiter, Rejection, StoreError};
use support::ALGORITHMS;
use support::server::Server;

use crate::faults::{DAILY, denying, store_error};

#[tokio::test]
async fn a_refused_user_is_told_what_to_allow() {
    let server = Server::start();
    let mut connection = server.connection();
    redis::cmd("ACL")
        .arg(&["SETUSER", "poor", "on", ">secret-word", "~ratelimit:*", "+ping"])
        .exec(&mut connection)
        .expect("ACL SETUSER");
    let url = server.url.replace("redis://", "redis://poor:secret-word@");
    let limiter = denying(&url).build().expect("valid");
    let error = store_error(limiter.check(&DAILY, (), 1).await);
    let StoreError::Server { code, .. } = &error else { panic!("{error:?}") };
    assert_eq!(&**code, "NOPERM");
    assert!(error.to_string().contains("EVALSHA"), "{error}");

    let url = server.url.replace("redis://", "redis://poor:wrong-word@");
    let limiter = denying(&url).build().expect("valid");
    let error = store_error(limiter.check(&DAILY, (), 1).await);
    assert!(matches!(error, StoreError::Server { .. }), "{error:?}");
    for text in [format!("{error:?}"), error.to_string(), format!("{limiter:?}")] {
        assert!(!text.contains("-word"), "{text}");
    }
}

/// The rights that "Running it in production" asks for are enough, and none can be left out.
#[tokio::test]
async fn the_least_rights_are_enough_and_needed() {
    let server = Server::start();
    let mut connection = server.connection();
    let least = "~ratelimit:* +eval +evalsha +time +get +set +getrange +setrange +pexpire +del \
                 +unlink";
    let page = include_str!("../../ratelimit-runtime/docs/production.md");
    assert!(page.contains(least), "the page says something else");
    let rights: Vec<_> = least.split_whitespace().collect();
    let url = server.url.replace("redis://", "redis://least:any@");
    let mut allow = |rights: &[&str]| {
        let mut user = redis::cmd("ACL");
        user.arg(&["SETUSER", "least", "reset", "on", "nopass"]).arg(rights);
        user.exec(&mut connection).expect("ACL SETUSER");
    };
    for left_out in 0..=rights.len() {
        let some = rights.iter().enumerate().filter(|(index, _)| *index != left_out);
        let some: Vec<_> = some.map(|(_, right)| *right).collect();
        allow(&some);
        let limiter = denying(&url).deadline(Duration::from_secs(5)).build().expect("valid");
        let answer = uses_everything(&limiter, &left_out.to_string()).await;
        assert_eq!(answer.is_ok(), left_out == rights.len(), "{some:?}: {answer:?}");
        if let Err(error @ StoreError::Server { code, .. }) = &answer {
            assert_eq!(&**code, "NOPERM", "{error}");
            assert!(error.to_string().contains("allow this user"), "{error}");
        }
    }
}

/// The rights that it asks for beside these are needed, too: for a database, and for another clock.
#[tokio::test]
async fn a_database_and_another_clock_need_a_right_each() {
    let server = Server::start();
    let mut connection = server.connection();
    let page = include_str!("../../ratelimit-runtime/docs/production.md");
    let least = "~ratelimit:* +eval +evalsha +get +set +getrange +setrange +pexpire +del +unlink";
    let url = server.url.replace("redis://", "redis://least:any@");
    let with_database = format!("{url}/3");
    for (right, other, url, clock) in
        [("+select", "+time", &with_database, Clock::Store), ("+pttl", "", &url, Clock::Client)]
    {
        assert!(page.contains(&format!("`{right}`")), "the page does not ask for {right}");
        for is_allowed in [false, true] {
            let rights = least.split_whitespace().chain([other, right]);
            let rights = rights.filter(|one| !one.is_empty() && (is_allowed || *one != right));
            let rights: Vec<_> = rights.collect();
            let mut user = redis::cmd("ACL");
            user.arg(&["SETUSER", "least", "reset", "on", "nopass"]).arg(rights);
            user.exec(&mut connection).expect("ACL SETUSER");
            let builder = denying(url).deadline(Duration::from_secs(5)).clock(clock.clone());
            let limiter = builder.build().expect("valid");
            let answer = uses_everything(&limiter, right).await;
            assert_eq!(answer.is_ok(), is_allowed, "{right}: {answer:?}");
            let _: () = redis::cmd("FLUSHALL").query(&mut connection).expect("FLUSHALL");
        }
    }
}

/// A right that only a script needs is missing: alone, with other limits, and with other calls.
#[tokio::test]
async fn a_right_that_a_script_lacks_is_told_in_every_script() {
    let server = Server::start();
    let mut connection = server.connection();
    // A user may have any name, also one that is the code of another error.
    let url = server.url.replace("redis://", "redis://OOM:any@");
    for denied in ["-get", "-getrange", "-setrange", "-time"] {
        let mut user = redis::cmd("ACL");
        user.arg(&["SETUSER", "OOM", "reset", "on", "nopass", "~ratelimit:*", "+@all", denied]);
        user.exec(&mut connection).expect("ACL SETUSER");
        let limiter = denying(&url).deadline(Duration::from_secs(5)).build().expect("valid");
        let says = |error: &StoreError| {
            let StoreError::Server { code, .. } = error else { panic!("{denied}: {error:?}") };
            assert_eq!(&**code, "NOPERM", "{denied}: {error}");
            assert!(error.to_string().contains("allow this user"), "{denied}: {error}");
            assert!(error.to_string().contains("Clock::Client"), "{denied}: {error}");
        };
        let fixed = Limit::fixed("lacks", 40, Duration::from_secs(60));
        let of = |index: u8| if index.is_multiple_of(2) { &DAILY } else { &fixed };
        let all = [Part::new(&DAILY, &1, 1), Part::new(&fixed, &1, 1)];
        says(&store_error(limiter.check_all(&all).await));
        // As many at once as share a script.
        let mut calls = tokio::task::JoinSet::new();
        for index in 0..32 {
            calls.spawn(limiter.check(of(index), index, 1));
        }
        let answers = calls.join_all().await;
        let errors: Vec<_> = answers.into_iter().filter(Result::is_err).map(store_error).collect();
        assert!(errors.len() >= 16, "{denied}: {} errors", errors.len());
        errors.iter().for_each(says);
    }
}

/// Does everything that a limiter can be asked to do.
async fn uses_everything(limiter: &RateLimiter, key: &str) -> Result<(), StoreError> {
    let of = |rejection| match rejection {
        Rejection::Unavailable { error, .. } => Err(error),
        _ => Ok(()),
    };
    for algorithm in ALGORITHMS {
        let limit = Limit::new("least", algorithm, 40, Duration::from_secs(60)).expect("valid");
        for cost in [1, 1, limit.capacity()] {
            limiter.check(&limit, key, cost).await.map(drop).or_else(of)?;
        }
        limiter.refund(&limit, key, 100).await?;
        let parts = [Part::new(&limit, &key, 1)];
        limiter.check_all(&parts).await.map(drop).or_else(of)?;
        limiter.reset(&limit, key).await?;
    }
    // Long enough a log that it is written anew, and has a segment.
    let long = Limit::sliding("long", 5_000, Duration::from_secs(60));
    for _ in 0..4_200 {
        limiter.check(&long, key, 1).await.map(drop).or_else(of)?;
    }
    limiter.reset(&long, key).await
}

/// What a server says when it cannot, each with what to do about it.
#[tokio::test]
async fn errors_of_the_server_tell_what_to_do() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    let mut connection = server.connection();
    let mut set = |name: &str, value: &str| {
        let mut config = redis::cmd("CONFIG");
        config.arg("SET").arg(name).arg(value).exec(&mut connection).expect("CONFIG SET");
    };
    let says = async |code: &str, advice: &str| {
        let error = store_error(limiter.check(&DAILY, (), 1).await);
        let StoreError::Server { code: said, .. } = &error else { panic!("{error:?}") };
        assert_eq!(&**said, code, "{error}");
        assert!(error.to_string().contains(advice), "{error}");
    };
    assert!(limiter.check(&DAILY, (), 1).await.is_ok());

    set("maxmemory", "1");
    says("OOM", "maxmemory").await;
    set("maxmemory", "0");

    set("min-replicas-to-write", "1");
    says("NOREPLICAS", "min-replicas-to-write").await;
    set("min-replicas-to-write", "0");

    redis::cmd("REPLICAOF").arg("127.0.0.1").arg(1).exec(&mut connection).expect("REPLICAOF");
    says("READONLY", "primary").await;
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut connection).expect("REPLICAOF");
    // It is not asked before it has answered a probe.
    let start = Instant::now();
    while limiter.check(&DAILY, (), 1).await.is_err() {
        assert!(start.elapsed() < Duration::from_secs(10), "never asked again");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    let mut set = |name: &str, value: &str| {
        let mut config = redis::cmd("CONFIG");
        config.arg("SET").arg(name).arg(value).exec(&mut connection).expect("CONFIG SET");
    };
    set("lua-time-limit", "1");
    let url = server.url.clone();
    let endless = std::thread::spawn(move || {
        let mut connection =
            redis::Client::open(url).expect("an address").get_connection().expect("a server");
        let mut script = redis::cmd("EVAL");
        script.arg("while true do end").arg(0).exec(&mut connection).expect_err("it is killed");
    });
    // It is busy once the script has run for long enough.
    let busy = loop {
        match limiter.check(&DAILY, (), 1).await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            Err(Rejection::Unavailable { error, .. }) => break error,
            Err(other) => panic!("{other:?}"),
        }
    };
    assert!(matches!(&busy, StoreError::Server { code, .. } if &**code == "BUSY"), "{busy:?}");
    assert!(busy.to_string().contains("SCRIPT KILL"), "{busy}");
    redis::cmd("SCRIPT").arg("KILL").exec(&mut connection).expect("SCRIPT KILL");
    endless.join().expect("no panic");
    assert!(limiter.check(&DAILY, (), 1).await.is_ok());
}
