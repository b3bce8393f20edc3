//! A primary that Sentinels know: when another becomes it, decisions follow.

use std::time::{Duration, Instant};

use ratelimit_runtime::{Limit, RateLimiter, Rejection, StoreError};
use redis::{Client, Commands, Connection};
use redis_test::sentinel::RedisSentinelCluster;

use crate::{denying, has_a_copy, recovered};

const LIMIT: Limit = Limit::sliding("sentinel", 5, Duration::from_secs(3600));

struct Service {
    cluster: RedisSentinelCluster,
}

impl Service {
    fn start() -> Self {
        let service = Self { cluster: RedisSentinelCluster::new(1, 1, 3) };
        for sentinel in &service.cluster.sentinel_servers {
            let client = Client::open(sentinel.connection_info()).expect("an address");
            // Starting takes some milliseconds; there is no event to wait for but an answer.
            let mut connection = loop {
                match client.get_connection() {
                    Ok(connection) => break connection,
                    Err(_) => std::thread::sleep(Duration::from_millis(10)),
                }
            };
            for (setting, value) in [("down-after-milliseconds", 500), ("failover-timeout", 2_000)]
            {
                let mut set = redis::cmd("SENTINEL");
                set.arg("SET").arg("master0").arg(setting).arg(value);
                set.exec(&mut connection).expect("SENTINEL SET");
            }
        }
        service
    }

    fn url(&self, service: &str) -> String {
        let servers = self.cluster.sentinel_servers.iter();
        let ports = servers.filter_map(|server| server.host_and_port());
        let hosts: Vec<_> = ports.map(|(host, port)| format!("{host}:{port}")).collect();
        format!("redis+sentinel://{}/{service}", hosts.join(","))
    }

    fn sentinel(&self) -> Connection {
        let sentinel = self.cluster.sentinel_servers[0].connection_info();
        Client::open(sentinel).expect("an address").get_connection().expect("a Sentinel")
    }

    fn primary(&self) -> (String, u16) {
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("GET-MASTER-ADDR-BY-NAME").arg("master0");
        ask.query(&mut self.sentinel()).expect("the primary")
    }

    /// Waits until the replica has all that the primary has.
    fn settle(&self) {
        let client = Client::open(self.primary()).expect("an address");
        while !has_a_copy(&mut client.get_connection().expect("the primary")) {}
    }
}

async fn fill(limiter: &RateLimiter, key: &str) {
    for left in (0..5).rev() {
        assert_eq!(limiter.check(&LIMIT, key, 1).await.expect("admitted").remaining, left);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failovers_are_followed() {
    let mut service = Service::start();
    let limiter = denying(&service.url("master0")).build().expect("valid");
    recovered(&limiter, &LIMIT, "connect").await;

    // One that is asked for: the old primary lives on as a replica.
    fill(&limiter, "asked for").await;
    service.settle();
    let before = service.primary();
    // Refused while a Sentinel has not yet seen the replica.
    let failover = || {
        let mut failover = redis::cmd("SENTINEL");
        failover.arg("FAILOVER").arg("master0").exec(&mut service.sentinel())
    };
    while failover().is_err() {
        std::thread::sleep(Duration::from_millis(50));
    }
    while service.primary() == before {
        // Before, during and after: refused, or not decided, but never admitted.
        let answer = limiter.check(&LIMIT, "asked for", 1).await;
        assert!(answer.is_err(), "{answer:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    let (decision, _) = recovered(&limiter, &LIMIT, "asked for").await;
    assert!(!decision.allowed, "the count was lost");
    // Until it is told, the old primary takes writes that will be lost. That is noticed soon.
    let client = Client::open(service.primary()).expect("an address");
    let mut primary = client.get_connection().expect("the primary");
    let start = Instant::now();
    while !primary.exists::<_, bool>("ratelimit:sliding:1h:sentinel{which}").expect("EXISTS") {
        assert!(start.elapsed() < Duration::from_secs(2), "the old primary is still asked");
        let _ = limiter.check(&LIMIT, "which", 1).await;
        std::thread::sleep(Duration::from_millis(10));
    }
    fill(&limiter, "after it").await;

    // One that has to be noticed: the primary is killed.
    let now = service.primary();
    service.settle();
    let of_primary = |server: &redis_test::server::RedisServer| {
        server.host_and_port().is_some_and(|(_, port)| port == now.1)
    };
    let killed = service.cluster.servers.iter_mut().find(|server| of_primary(server));
    killed.expect("the primary").stop();
    let (decision, took) = recovered(&limiter, &LIMIT, "after it").await;
    println!("a killed primary was replaced after {took:?}");
    assert!(!decision.allowed, "the count was lost");
    assert_ne!(service.primary(), now);
}

#[tokio::test]
async fn a_service_that_nobody_knows_is_named() {
    let service = Service::start();
    let limiter = denying(&service.url("nobody")).build().expect("valid");
    let refused = limiter.check(&LIMIT, "key", 1).await;
    let Err(Rejection::Unavailable { error: StoreError::Connection { message, .. }, .. }) = refused
    else {
        panic!("{refused:?}")
    };
    assert!(message.contains("nobody"), "{message}");
}
