//! Replicas lag behind, so nothing is read from them: neither counts, nor slots of calls in flight, nor rules. After a
//! failover, the limiter uses the new primary.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use ratelimit_runtime::{Limit, RateLimiter, Rule, Rules, StoreError};
use redis::{Client, Commands, Connection};
use support::cluster::Cluster;
use support::limits::HOUR;
use support::sentinel::Sentinels;
use support::server::{command, is_replicated};
use support::wait::wait_until;

use crate::{denying, denying_builder, error_of, first_decision, take, use_all_operations};

/// Shares a rule, and waits until a limiter has read it. The keys of the limit are on all nodes.
async fn share_rule(limiter: &RateLimiter) {
    let mut shared = limiter.operator().shared_rules().await.expect("read");
    shared.rules.set_key("ruled", "7", Rule::new().threshold(50)).expect("valid");
    limiter.operator().share_rules(shared, "alice").await.expect("written");
    wait_until(async || !limiter.rules().is_empty()).await;
    let limit = Limit::sliding("ruled", 10, HOUR);
    let expected: BTreeSet<String> = (0..40_u64).map(|key| key.to_string()).collect();
    for key in &expected {
        let decision = limiter.check(&limit, key, 1).await.expect("admitted");
        assert_eq!(decision.limit, if key == "7" { 50 } else { 10 });
    }
    let (mut found, mut next) = (BTreeSet::new(), None);
    loop {
        let page = limiter.operator().keys(&limit, next).await.expect("read");
        found.extend(page.keys.iter().map(ToString::to_string));
        let Some(cursor) = page.next else { break };
        next = Some(cursor);
    }
    assert_eq!(found, expected);
}

/// Asserts that a replica has received writes of its primary, and no command that can only come from a client: it
/// reads, or is a script. A primary sends the writes of its scripts to its replicas, and not the scripts.
fn assert_is_not_asked(replica: &mut Connection) {
    let stats: String = command(replica, "INFO commandstats");
    // Servers before Redis 7 do not tell how many were rejected.
    let is_called = |values: &str| {
        let is_rejected =
            values.contains("rejected_calls=") && !values.contains("rejected_calls=0");
        !values.starts_with("calls=0,") || is_rejected
    };
    let commands = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(':'));
    let commands: Vec<_> = commands.filter(|(_, values)| is_called(values)).collect();
    let is_written = |name: &str| ["set", "hset", "zadd", "psetex"].contains(&name);
    assert!(commands.iter().any(|(name, _)| is_written(name)), "no writes: {commands:?}");
    let is_script = ["eval", "evalsha", "eval_ro", "evalsha_ro", "fcall", "fcall_ro", "script"];
    for (name, calls) in &commands {
        let name = name.split('|').next().expect("a name");
        let info: Vec<Vec<redis::Value>> = command(replica, &format!("COMMAND INFO {name}"));
        let flags: Vec<String> = redis::from_redis_value_ref(&info[0][2]).expect("flags");
        let is_of_a_client = is_script.contains(&name)
            || name == "readonly"
            || flags.iter().any(|it| it == "readonly");
        assert!(!is_of_a_client, "{calls} of {name}: {commands:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_of_a_cluster_are_not_asked() {
    let cluster = Cluster::start(1);
    let (primaries, replicas): (Vec<_>, Vec<_>) =
        (0..cluster.len()).partition(|node| cluster.is_primary(*node));
    let mut replicas: Vec<_> =
        replicas.into_iter().map(|node| (cluster.port(node), cluster.connection(node))).collect();
    for (_, replica) in &mut replicas {
        command::<()>(replica, "CONFIG RESETSTAT");
    }
    // The URL of the other leads to a replica, which tells where the primaries are.
    let by_replica = format!("redis+cluster://127.0.0.1:{}", replicas[0].0);
    for url in [cluster.url(), by_replica] {
        let limiter = denying_builder(&url).rules(Rules::redis()).build().expect("valid");
        share_rule(&limiter).await;
        use_all_operations(&limiter).await;
        limiter.shutdown().await.expect("settled");
    }
    for node in primaries {
        while !is_replicated(&mut cluster.connection(node)) {}
    }
    for (_, replica) in &mut replicas {
        assert_is_not_asked(replica);
    }
}

const LIMIT: Limit = Limit::sliding("sentinel", 5, Duration::from_secs(3600));

/// After the failover, the old primary becomes a replica. The matrix has a primary that is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_replica_beside_a_primary_with_sentinels_is_not_asked_until_a_failover() {
    let sentinels = Sentinels::start();
    let error = error_of(&denying(&sentinels.url("unknown")), &LIMIT).await;
    assert!(
        matches!(&error, StoreError::Connection { message, .. } if message.contains("unknown")),
        "{error:?}"
    );

    let client = Client::open(sentinels.replica()).expect("an address");
    let mut replica = client.get_connection().expect("the replica");
    command::<()>(&mut replica, "CONFIG RESETSTAT");
    let builder = denying_builder(&sentinels.url("master0")).rules(Rules::redis());
    let limiter = builder.build().expect("valid");
    first_decision(&limiter, &LIMIT, "connect").await;
    share_rule(&limiter).await;
    use_all_operations(&limiter).await;
    limiter.flush().await.expect("settled");
    sentinels.wait_for_replication();
    assert_is_not_asked(&mut replica);

    for left in (0..5).rev() {
        assert_eq!(take(&limiter, &LIMIT, "key").await, left);
    }
    sentinels.wait_for_replication();
    let before = sentinels.primary();
    sentinels.fail_over();
    while sentinels.primary() == before {
        // Before, during and after the failover, calls are rejected or not decided, but never admitted.
        let result = limiter.check(&LIMIT, "key", 1).await;
        assert!(result.is_err(), "{result:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    let decision = first_decision(&limiter, &LIMIT, "key").await;
    assert!(!decision.allowed, "the count was lost");
    // The old primary accepts writes, which will be lost, until it becomes a replica. The limiter soon detects that.
    let client = Client::open(sentinels.primary()).expect("an address");
    let mut primary = client.get_connection().expect("the primary");
    let start = Instant::now();
    while !primary.exists::<_, bool>("rl:sliding:1h:sentinel{which}").expect("EXISTS") {
        assert!(start.elapsed() < Duration::from_secs(2), "the limiter still uses the old primary");
        let _ = limiter.check(&LIMIT, "which", 1).await;
        std::thread::sleep(Duration::from_millis(10));
    }
}
