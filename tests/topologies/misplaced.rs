//! Scripts to which a node replies that it does not serve their key. Managed servers do so now and then while a hash
//! slot moves, and have executed nothing. No server replies so on demand, so a relay does it in place of a real node.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::spawn;
use std::time::Duration;

use ratelimit_runtime::{Limit, Part, RateLimiter, Source};
use support::cluster::Cluster;
use support::limits::HOUR;

use crate::{denying_builder, first_decision};

const REPLY: &str = "-ERR Script attempted to access a non local key in a cluster node script: 0000, \
    on @user_script:1.\r\n";

struct Relay {
    port: u16,
    /// The reply to the next script, instead of that of the node.
    next: Arc<Mutex<Option<&'static str>>>,
}

impl Relay {
    fn start(node: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let next = Arc::default();
        let relay = Self { port, next: Arc::clone(&next) };
        spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(("127.0.0.1", node)).expect("the node");
                let clone = |stream: &TcpStream| stream.try_clone().expect("a socket");
                let (from, to) = (clone(&server), clone(&client));
                // Clients learn of the relay as the address of the node.
                let (of_node, of_relay) = (format!(":{node}\r\n"), format!(":{port}\r\n"));
                spawn(move || {
                    copy(from, to, |bytes, to| {
                        let text = String::from_utf8_lossy(bytes);
                        if text.contains(&of_node) {
                            return to.write_all(text.replace(&of_node, &of_relay).as_bytes());
                        }
                        to.write_all(bytes)
                    });
                });
                let next = Arc::clone(&next);
                spawn(move || {
                    copy(clone(&client), server, |bytes, server| {
                        let is_script = bytes.windows(4).any(|word| word == b"EVAL");
                        let reply = is_script.then(|| take(&next)).flatten();
                        match reply {
                            Some(reply) => (&client).write_all(reply.as_bytes()),
                            None => server.write_all(bytes),
                        }
                    });
                });
            }
        });
        relay
    }

    fn reply_once(&self, reply: &'static str) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(reply);
    }

    fn has_replied(&self) -> bool {
        self.next.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

fn take(next: &Mutex<Option<&'static str>>) -> Option<&'static str> {
    next.lock().unwrap_or_else(PoisonError::into_inner).take()
}

fn copy(
    mut from: TcpStream,
    mut to: TcpStream,
    write: impl Fn(&[u8], &mut TcpStream) -> std::io::Result<()>,
) {
    let mut bytes = vec![0; 65_536];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        if write(&bytes[..length], &mut to).is_err() {
            return;
        }
    }
}

/// Starts a relay to the node of a key, and a limiter that has decided a call of it.
async fn through_relay(cluster: &Cluster, limit: &Limit, key: &str) -> (Relay, RateLimiter) {
    let node = cluster.port(cluster.owner(cluster.slot(key)));
    let relay = Relay::start(node);
    let url = format!("redis+cluster://127.0.0.1:{}", relay.port);
    let limiter = denying_builder(&url).build().expect("valid");
    first_decision(&limiter, limit, key).await;
    (relay, limiter)
}

#[tokio::test]
async fn what_a_node_does_not_serve_is_sent_to_the_node_that_does() {
    let cluster = Cluster::start(0);
    let (first, other) = (Limit::sliding("first", 10, HOUR), Limit::fixed("other", 10, HOUR));
    let (relay, limiter) = through_relay(&cluster, &first, "one").await;
    relay.reply_once(REPLY);
    let decision = limiter.check(&first, "one", 1).await.expect("admitted");
    assert!(relay.has_replied());
    assert_eq!((decision.source, decision.remaining), (Source::Redis, 8));
    // The limits of one key share a hash slot, so one script decides them.
    relay.reply_once(REPLY);
    let parts = [Part::new(&first, &"one", 1), Part::new(&other, &"one", 1)];
    let both = limiter.check_all(&parts).await;
    assert!(relay.has_replied());
    both.expect("admitted");
    assert_eq!(limiter.peek(&other, "one", 1).await.expect("a reply").remaining, 9);
    // A charge is corrected once the node is known.
    let limit = Limit::sliding("settled", 10, HOUR);
    let (relay, limiter) = through_relay(&cluster, &limit, "one").await;
    let permit = limiter.acquire(&limit, "one", 4).await.expect("admitted");
    relay.reply_once(REPLY);
    permit.settle(1);
    limiter.flush().await.expect("none is lost");
    assert!(relay.has_replied());
    assert_eq!(limiter.peek(&limit, "one", 1).await.expect("a reply").remaining, 8);
    // A call in flight takes and frees its slot there.
    let slots = Limit::in_flight("slots", 2).hold(Duration::from_secs(30));
    let (relay, limiter) = through_relay(&cluster, &limit, "one").await;
    relay.reply_once(REPLY);
    let permit = limiter.acquire(&slots, "one", 1).await.expect("admitted");
    assert!(relay.has_replied());
    relay.reply_once(REPLY);
    permit.release().await.expect("a reply");
    assert!(relay.has_replied());
    assert_eq!(limiter.peek(&slots, "one", 1).await.expect("a reply").remaining, 2);
}
