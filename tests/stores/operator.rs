//! What an operator is told: the rights a user needs, and what to do about what the server says.

use std::time::Duration;

use ratelimit_runtime::{Limit, Part, RateLimiter, Rejection, StoreError};
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
    assert!(limiter.check(&DAILY, (), 1).await.is_ok());

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
