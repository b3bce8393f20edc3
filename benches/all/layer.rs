//! Measures the time that the layer adds to a request, and the time that `tower_governor` adds.
//!
//! One service is called without a layer, behind the layer of this library, and behind the other layer, in turn.
//! The time without a layer is subtracted. Requests contain the address of their peer, which is the key.

use std::convert::Infallible;
use std::hint::black_box;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::ConnectInfo;
use http::{Request, Response};
use ratelimit_runtime::web::{Clients, RateLimitLayer};
use ratelimit_runtime::{Limit, RateLimiter};
use tower::{Service, service_fn};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::{GlobalKeyExtractor, PeerIpKeyExtractor};
use tower_layer::Layer;

use crate::Scale;
use crate::table::{Better, Block, Column, Kind, Row, Table};

const REQUESTS: u32 = 20_000;
const CLIENTS: u32 = 10_000;

/// No request is rejected during the bench.
const FLOWING: u32 = 10_000_000;
const DAY: Duration = Duration::from_secs(86_400);

/// A service that is measured.
trait Handler: Service<Request<Body>, Error = Infallible> + Clone {}

impl<S: Service<Request<Body>, Error = Infallible> + Clone> Handler for S {}

pub(crate) fn measure(scale: &Scale) -> Vec<Block> {
    let rows = [
        ("admitted, both send the fields", compare(scale, FLOWING, true)),
        ("admitted, a limit of the client and one of all clients", compare_two(scale)),
        ("admitted, tower_governor sends no fields", compare(scale, FLOWING, false)),
        ("rejected", compare(scale, 1, true)),
    ];
    let columns = [("ours", Kind::Ours), ("tower_governor", Kind::Peer)];
    let table = Table {
        title: "What a layer adds to a request",
        unit: "nanoseconds",
        better: Better::Less,
        by: "request",
        columns: columns.map(|(name, kind)| Column::new(name, kind)).into(),
        rows: rows.map(|(name, spent)| Row::of(name, spent)).into(),
    };
    vec![Block::table("layer", table)]
}

/// Measures the time that each layer adds to a service.
fn compare(scale: &Scale, burst: u32, theirs_tells: bool) -> [f64; 2] {
    let clients = Clients::direct();
    let ours = RateLimitLayer::new()
        .limit(of_client(burst.min(30_000)), move |request| clients.identify(request))
        .limiter(RateLimiter::embedded());
    let mut config = GovernorConfigBuilder::default();
    config.period(DAY).burst_size(burst);
    let mut config = config.key_extractor(PeerIpKeyExtractor);
    if theirs_tells {
        let telling = GovernorLayer::new(Arc::new(config.use_headers().finish().expect("valid")));
        compare_services(scale, &mut ours.layer(handler()), &mut telling.layer(handler()))
    } else {
        let silent = GovernorLayer::new(Arc::new(config.finish().expect("valid")));
        compare_services(scale, &mut ours.layer(handler()), &mut silent.layer(handler()))
    }
}

/// Measures the time that one layer with two limits adds to a service, and two of the other layers.
fn compare_two(scale: &Scale) -> [f64; 2] {
    let clients = Clients::direct();
    let ours = RateLimitLayer::new()
        .limit(of_client(30_000), move |request| clients.identify(request))
        .limit(Limit::token_bucket("all", FLOWING.into(), DAY), |_| ())
        .limiter(RateLimiter::embedded());
    let mut config = GovernorConfigBuilder::default();
    config.period(DAY).burst_size(FLOWING);
    let mut config = config.key_extractor(PeerIpKeyExtractor);
    let of_client = GovernorLayer::new(Arc::new(config.use_headers().finish().expect("valid")));
    let mut config = GovernorConfigBuilder::default();
    config.period(DAY / FLOWING).burst_size(FLOWING);
    let mut config = config.key_extractor(GlobalKeyExtractor);
    let of_all = GovernorLayer::new(Arc::new(config.use_headers().finish().expect("valid")));
    let mut theirs = of_client.layer(of_all.layer(handler()));
    compare_services(scale, &mut ours.layer(handler()), &mut theirs)
}

fn of_client(burst: u32) -> Limit {
    Limit::token_bucket("bench", 1, DAY).burst(burst.into())
}

fn handler() -> impl Handler<Response = Response<Body>> {
    service_fn(async |request: Request<Body>| {
        black_box(&request);
        Ok::<_, Infallible>(Response::new(Body::empty()))
    })
}

/// Returns the nanoseconds that two services take longer than one without a layer.
fn compare_services(scale: &Scale, ours: &mut impl Handler, theirs: &mut impl Handler) -> [f64; 2] {
    let (mut bare, mut rounds) = (handler(), [const { Vec::new() }; 3]);
    // Many short rounds.
    for _ in 0..if scale.quick { 3 } else { 41 } {
        rounds[0].push(round(&mut bare));
        rounds[1].push(round(ours));
        rounds[2].push(round(theirs));
    }
    let [bare, ours, theirs] = rounds.map(median);
    [ours - bare, theirs - bare]
}

/// Returns the nanoseconds of a request.
fn round(service: &mut impl Handler) -> f64 {
    let mut context = Context::from_waker(Waker::noop());
    let mut spent = Duration::ZERO;
    // The requests are created in advance, in portions that fit in the cache.
    for portion in 0..REQUESTS / 100 {
        let requests: Vec<_> = (0..100).map(|at| request(portion * 100 + at)).collect();
        let start = Instant::now();
        for request in requests {
            assert!(service.poll_ready(&mut context).is_ready());
            let answer = pin!(service.call(request)).poll(&mut context);
            let Poll::Ready(Ok(response)) = answer else { panic!("nothing is waited for") };
            black_box(response);
        }
        spent += start.elapsed();
    }
    spent.as_nanos() as f64 / f64::from(REQUESTS)
}

fn request(number: u32) -> Request<Body> {
    let address = (number.wrapping_mul(2_654_435_761) % CLIENTS).to_be_bytes();
    let peer = SocketAddr::from((address, 4711));
    let request = Request::builder().uri("/hi/7").header("accept", "*/*");
    let request = request.header("user-agent", "bench").extension(ConnectInfo(peer));
    request.body(Body::empty()).expect("a request")
}

fn median(mut rounds: Vec<f64>) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}
