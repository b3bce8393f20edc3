//! The ends of a body, and of a handler.

use std::convert::Infallible;
use std::future::pending;
use std::panic::AssertUnwindSafe;
use std::pin::pin;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::poll_immediate;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame};
use support::server::Server;
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;

use super::{Handler, TWO, in_flight, layer, wait_for_in_flight};
use crate::{limiters, timed};

#[tokio::test]
async fn a_body_holds_its_slot_until_it_ends_fails_or_is_dropped() {
    let redis = Server::start();
    for (limiter, _) in limiters(&redis) {
        let (handler, layer) = (Handler::default(), layer(&limiter));
        let (mut body, sender) = handler.admit(&layer).await;
        let data = |text: &'static str| Ok(Frame::data(Bytes::from_static(text.as_bytes())));
        sender.send(data("first")).expect("not dropped");
        assert!(body.frame().await.expect("a part").is_ok());
        assert_eq!(in_flight(&limiter, &TWO).await, 1);
        let (mut failing, failing_sender) = handler.admit(&layer).await;
        assert_eq!(handler.status(&layer, "/").await, 429);

        // Trailers follow the data, and belong to the body.
        sender.send(data("last")).expect("not dropped");
        let trailers = HeaderMap::from_iter([("x-sum".parse().expect("a name"), 7.into())]);
        sender.send(Ok(Frame::trailers(trailers))).expect("not dropped");
        assert!(body.frame().await.expect("a part").expect("data").is_data());
        assert_eq!(in_flight(&limiter, &TWO).await, 2);
        drop(sender);
        let trailers = body.frame().await.expect("a part").expect("trailers");
        assert_eq!(trailers.into_trailers().expect("trailers")["x-sum"], "7");
        // A server does not poll a body that says that it is at its end.
        assert_eq!(in_flight(&limiter, &TWO).await, 1);
        assert!(body.frame().await.is_none());

        failing_sender.send(Err("the source fails")).expect("not dropped");
        assert!(failing.frame().await.expect("a part").is_err());
        assert_eq!(in_flight(&limiter, &TWO).await, 0);

        let (mut body, sender) = handler.admit(&layer).await;
        assert!(poll_immediate(body.frame()).await.is_none());
        drop(sender);
        assert!(body.frame().await.is_none());
        assert_eq!(in_flight(&limiter, &TWO).await, 0);

        // Dropped without a poll, after what hyper asks of a body before it polls it.
        let (dropped, sender) = handler.admit(&layer).await;
        drop(sender);
        assert_eq!(in_flight(&limiter, &TWO).await, 1);
        assert_eq!((dropped.is_end_stream(), dropped.size_hint().lower()), (true, 42));
        drop(dropped);
        assert_eq!(in_flight(&limiter, &TWO).await, 0);
    }
}

#[tokio::test]
async fn a_body_that_is_at_its_end_frees_its_slot_at_once() {
    let (limiter, _) = timed();
    let empty = service_fn(async |_: Request<String>| {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(String::new())))
    });
    let response = layer(&limiter).layer(empty).oneshot(Request::new(String::new())).await;
    let ended = response.expect("infallible");
    assert!(ended.body().is_end_stream());
    assert_eq!(in_flight(&limiter, &TWO).await, 0);
    let full = service_fn(async |_: Request<String>| {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("text")))
    });
    let response = layer(&limiter).layer(full).oneshot(Request::new(String::new())).await;
    let mut body = response.expect("infallible").into_body();
    assert_eq!(body.size_hint().exact(), Some(4));
    assert_eq!(in_flight(&limiter, &TWO).await, 1);
    assert!(body.frame().await.is_some());
    assert_eq!(in_flight(&limiter, &TWO).await, 0, "the only part was the last");
}

/// A client that leaves before the response makes the server drop the future of the handler.
#[tokio::test]
async fn a_handler_that_is_dropped_fails_or_panics_frees_its_slot() {
    let redis = Server::start();
    for (limiter, _) in limiters(&redis) {
        let layer = layer(&limiter);
        let handle = service_fn(async |request: Request<String>| match request.uri().path() {
            "/never" => pending().await,
            "/panic" => panic!("the handler panics"),
            _ => Err::<Response<Full<Bytes>>, _>("the service fails"),
        });
        let send = |path: &str| {
            let request = Request::get(path).body(String::new()).expect("a request");
            layer.layer(handle).oneshot(request)
        };
        {
            let mut running = pin!(send("/never"));
            while in_flight(&limiter, &TWO).await == 0 {
                assert!(poll_immediate(&mut running).await.is_none());
            }
            assert_eq!(in_flight(&limiter, &TWO).await, 1);
        }
        // Redis can have admitted the request before this process has received the reply.
        wait_for_in_flight(&limiter, &TWO, 0).await;
        let failed = send("/fail");
        assert!(failed.await.is_err());
        wait_for_in_flight(&limiter, &TWO, 0).await;
        assert!(AssertUnwindSafe(send("/panic")).catch_unwind().await.is_err());
        wait_for_in_flight(&limiter, &TWO, 0).await;
    }
}
