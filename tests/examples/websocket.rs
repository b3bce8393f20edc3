//! The example `websocket`, with a real client.

use std::time::{Duration, Instant};

use futures::{SinkExt, StreamExt};
use support::http::get;
use support::server::Server;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::{ExampleServer, example};

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Opens a socket, and lets the server echo a text. The error has the response of the server.
async fn open(server: &ExampleServer, token: &str) -> Result<Socket, Error> {
    let url = format!("ws://{}/socket?token={token}", server.address);
    let (mut socket, _) = connect_async(url).await?;
    socket.send(Message::text("hello")).await?;
    assert_eq!(socket.next().await.expect("an echo")?, Message::text("hello"));
    Ok(socket)
}

async fn rejected(server: &ExampleServer, token: &str) -> (u16, Option<String>) {
    let Err(Error::Http(response)) = open(server, token).await else {
        panic!("the server opens a socket")
    };
    let wait = response.headers().get("retry-after");
    let wait = wait.map(|wait| wait.to_str().expect("ASCII").to_owned());
    (response.status().as_u16(), wait)
}

/// Opens a socket as soon as the server has noticed that another one is closed.
async fn open_again(server: &ExampleServer, token: &str) -> Socket {
    let started = Instant::now();
    loop {
        match open(server, token).await {
            Ok(socket) => return socket,
            Err(error) => assert!(started.elapsed() < Duration::from_secs(10), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_user_has_three_sockets_on_all_servers_together() {
    let redis = Server::start();
    let start = || {
        let mut command = example("websocket");
        command.env("RATELIMIT_REDIS_URL", &redis.url);
        ExampleServer::start(command)
    };
    let servers = [start(), start()];
    let mut first = open(&servers[0], "a1b2").await.expect("a socket");
    let second = open(&servers[1], "a1b2").await.expect("a socket");
    let third = open(&servers[0], "a1b2").await.expect("a socket");
    for server in &servers {
        assert_eq!(rejected(server, "a1b2").await, (429, Some("1".to_owned())));
        assert_eq!(rejected(server, "e5f6").await.0, 401);
        drop(open(server, "c3d4").await.expect("a place of another user"));
    }

    // One is blocked, and one is torn down without a word.
    first.close(None).await.expect("closed");
    let first = open_again(&servers[1], "a1b2").await;
    assert_eq!(rejected(&servers[0], "a1b2").await.0, 429);
    drop(second);
    let second = open_again(&servers[0], "a1b2").await;
    assert_eq!(rejected(&servers[1], "a1b2").await.0, 429);

    // A request that is not one for a WebSocket gets an error, and holds no place.
    drop((first, second, third));
    for _ in 0..5 {
        drop(open_again(&servers[0], "a1b2").await);
        let plain = get(servers[0].address, "/socket?token=c3d4", &[]);
        assert_eq!(plain.status, 400, "{plain:?}");
    }
    redis.assert_all_keys_expire();
}
