//! Requests that count by their response, such as failed logins: the layer and the middleware charge each request, and
//! give the charge back if its response does not count.

use std::future::pending;

use actix_web::dev::{Service, ServiceRequest};
use actix_web::error::{ErrorForbidden, ErrorUnauthorized};
use actix_web::test::try_call_service;
use support::wait::wait_until;

use crate::prelude::*;

const FAILURES: Limit = Limit::fixed("failures", 2, MINUTE);

async fn handle(request: Request<String>) -> Result<Response<String>, &'static str> {
    let status = match request.uri().path() {
        "/broken" => return Err("the service fails"),
        "/never" => pending().await,
        "/panic" => panic!("the handler panics"),
        path => path[1..].parse().expect("a status"),
    };
    let mut response = Response::new(String::new());
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    Ok(response)
}

/// A layer with [`FAILURES`] that counts responses with status 401.
fn layer(limiter: &RateLimiter) -> RateLimitLayer {
    let layer = RateLimitLayer::new().limit(FAILURES, |_| ()).limiter(limiter.clone());
    layer.count_if(|response| response.status == 401)
}

/// Sends a request through `layer`, without a socket. Returns the status of the response; 0 if the service fails.
async fn send(layer: &RateLimitLayer, path: &str) -> u16 {
    let request = Request::get(path).body(String::new()).expect("a request");
    let response = layer.layer(service_fn(handle)).oneshot(request).await;
    response.map_or(0, |response| response.status().as_u16())
}

support::on_both_stores! {
    limiters;

    /// The charge is made before the handler runs: guesses at the same time cannot pass the limit.
    async fn requests_in_progress_count((limiter, _)) {
        let layer = layer(&limiter);
        assert_eq!((send(&layer, "/200").await, left(&limiter, &FAILURES).await), (200, 2));
        let guesses = [(); 2].map(|()| {
            let layer = layer.clone();
            tokio::spawn(async move { send(&layer, "/never").await })
        });
        wait_until(async || left(&limiter, &FAILURES).await == 0).await;
        assert_eq!(send(&layer, "/200").await, 429);
        for guess in guesses {
            guess.abort();
            assert!(guess.await.is_err());
        }
        assert_eq!(send(&layer, "/200").await, 429, "a client that leaves keeps its charge");
    }

    /// Each limit gets its own cost back, also a limit that a function chooses for the request.
    async fn gives_back_the_charges_of_all_limits((limiter, _)) {
        let (each, chosen) = (Limit::sliding("each", 5, MINUTE), Limit::token_bucket("own", 9, MINUTE));
        let choose = move |_: &Parts, limits: &mut RequestLimits| {
            limits.add(&chosen, (), 4);
            Ok(())
        };
        let one = RateLimitLayer::new().limits(choose).limiter(limiter.clone());
        let layer = one.clone().limit(each, |_| ()).count_if(|response| response.status == 401);
        for (path, status, lefts) in [
            ("/200", 200, (5, 9)),
            ("/401", 401, (4, 5)),
            ("/200", 200, (4, 5)),
            ("/401", 401, (3, 1)),
            ("/401", 429, (3, 1)),
        ] {
            assert_eq!(send(&layer, path).await, status);
            assert_eq!((left(&limiter, &each).await, left(&limiter, &chosen).await), lefts);
        }
        limiter.reset(&chosen, ()).await.expect("reset");
        assert_eq!(send(&one.count_if(|_| false), "/401").await, 401);
        assert_eq!(left(&limiter, &chosen).await, 9);
    }
}

#[tokio::test]
async fn a_request_without_a_response_keeps_its_charge() {
    let (limiter, _) = timed();
    let wide = Limit::fixed("wide", 9, MINUTE);
    let layer = RateLimitLayer::new().limit(wide, |_| ()).limiter(limiter.clone());
    let layer = layer.count_if(|response| match response.status.as_u16() {
        418 => panic!("the function panics"),
        status => status == 401,
    });
    assert_eq!(send(&layer, "/broken").await, 0);
    for (path, remaining) in [("/panic", 7), ("/418", 6)] {
        assert!(AssertUnwindSafe(send(&layer, path)).catch_unwind().await.is_err(), "{path}");
        assert_eq!(left(&limiter, &wide).await, remaining, "{path}");
    }
    assert_eq!(poll_immediate(send(&layer, "/never")).await, None);
    assert_eq!(send(&layer, "/200").await, 200);
    assert_eq!(left(&limiter, &wide).await, 5);
}

#[tokio::test]
async fn a_request_that_has_waited_counts_by_its_response() {
    let (limiter, clock) = timed();
    let layer = RateLimitLayer::new().limit(FAILURES.wait(MINUTE), |_| ());
    let layer = layer.count_if(|response| response.status == 401).expose_decision();
    let layer = layer.limiter(limiter.clone());
    assert_eq!((send(&layer, "/401").await, send(&layer, "/401").await), (401, 401));
    let (status, ()) = tokio::join!(send(&layer, "/200"), async { clock.advance(MINUTE) });
    assert_eq!((status, left(&limiter, &FAILURES).await), (200, 2));
    assert_eq!((send(&layer, "/401").await, send(&layer, "/401").await), (401, 401));
    assert_eq!(poll_immediate(send(&layer, "/200")).await, None);
    clock.advance(MINUTE);
    assert_eq!(left(&limiter, &FAILURES).await, 2);
}

/// The headers report the charge, also if it is given back.
#[tokio::test]
async fn the_headers_report_the_charge() {
    let (limiter, _) = timed();
    let layer = layer(&limiter);
    for (path, states, remaining) in [
        ("/200", r#""failures";r=1;t=60"#, 2),
        ("/401", r#""failures";r=1;t=60"#, 1),
        ("/200", r#""failures";r=0;t=60"#, 1),
    ] {
        let request = Request::get(path).body(String::new()).expect("a request");
        let response = layer.layer(service_fn(handle)).oneshot(request).await.expect("handled");
        assert_eq!(response.headers()["ratelimit"], states, "{path}");
        assert_eq!(left(&limiter, &FAILURES).await, remaining, "{path}");
    }
}

/// actix-web: handlers, errors of handlers, and errors of inner middlewares.
#[actix_web::test]
async fn the_middleware_of_actix_counts_by_the_response() {
    let redis = Server::start();
    for (limiter, _) in limiters(&redis) {
        let limits = RateLimits::new().limit(FAILURES, |_| ()).limiter(limiter.clone());
        let refused = async || Err::<&str, _>(ErrorUnauthorized("no"));
        let app = App::new()
            .route("/in", web::get().to(async || "in"))
            .route("/error", web::get().to(refused))
            .wrap_fn(|request: ServiceRequest, service| {
                let refusal = match request.path() {
                    "/no" => Some(ErrorUnauthorized("no")),
                    "/forbidden" => Some(ErrorForbidden("forbidden")),
                    _ => None,
                };
                let handled = service.call(request);
                async move { if let Some(error) = refusal { Err(error) } else { handled.await } }
            })
            .wrap(limits.count_if(|response| response.status == 401));
        let app = init_service(app).await;
        for (path, status, remaining) in [
            ("/in", 200, 2),
            ("/error", 401, 1),
            ("/in", 200, 1),
            ("/forbidden", 403, 1),
            ("/no", 401, 0),
            ("/in", 429, 0),
        ] {
            let answer = try_call_service(&app, TestRequest::get().uri(path).to_request()).await;
            let refused = |error: actix_web::Error| error.as_response_error().status_code();
            assert_eq!(answer.map_or_else(refused, |it| it.status()), status, "{path}");
            assert_eq!(left(&limiter, &FAILURES).await, remaining, "{path}");
        }
    }
}
