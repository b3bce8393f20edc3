//! axum: the layer, annotated handlers behind it, and the headers that report the limits of both. `actix`, `outbound`
//! and `tonic` test what differs in their frameworks.

mod headers;
mod rejections;
mod setup;

use support::http::Response;

use crate::prelude::*;

#[rate_limit(period = "30s", threshold = 2, algo = "fixed", key = id, name = "hi")]
async fn hi(Path(id): Path<u64>) -> Result<String, Rejection> {
    Ok(format!("hi {id}"))
}

#[rate_limit(period = "1m", threshold = size, algo = "fixed", cost = 5, name = "sized")]
async fn sized(Path(size): Path<u64>) -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = "1h", threshold = 1, key = client, name = "once")]
async fn once(client: Client) -> Result<String, Rejection> {
    Ok(client.to_string())
}

#[rate_limit(limit = ALL)]
async fn again() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = "1m", threshold = 1, key = (), name = "trial", shadow = true)]
async fn tried() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(
    limit(period = 1.5, threshold = 5, algo = "token_bucket", burst = 9, name = "wide"),
    limit(period = "1d", threshold = 3, name = "narrow", key = ())
)]
async fn both() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 2, cost = u64::from(3_u8), name = "costly")]
async fn costly() -> Result<(), Rejection> {
    Ok(())
}

fn router() -> Router {
    Router::new()
        .route("/hi/{id}", route_get(hi))
        .route("/sized/{size}", route_get(sized))
        .route("/tried", route_get(tried))
        .route("/both", route_get(both))
        .route("/costly", route_get(costly))
        .route("/plain", route_get(async || "plain"))
}

/// Asks a server with `ALL`, legacy headers, and the handlers of [`router`].
pub(crate) fn assert_reports_all_limits(address: SocketAddr, clock: &VirtualClock) {
    let (all, both) = (r#""all";q=4;w=60"#, r#""all";q=4;w=60, "hi";q=2;w=30"#);
    for (advance, path, status, policy, states, legacy) in [
        (0, "/hi/1", 200, both, r#""all";r=3;t=60, "hi";r=1;t=30"#, ["2", "1", "30"]),
        (9_001, "/hi/1", 200, both, r#""all";r=2;t=51, "hi";r=0;t=21"#, ["2", "0", "21"]),
        // Rejected by the handler: its limit comes first, and the other has no `t`, because it is later.
        (0, "/hi/1", 429, both, r#""hi";r=0;t=21, "all";r=1"#, ["2", "0", "21"]),
        // A handler without a limit, and then rejections by the layer.
        (0, "/plain", 200, all, r#""all";r=0;t=51"#, ["4", "0", "51"]),
        (0, "/hi/2", 429, all, r#""all";r=0;t=51"#, ["4", "0", "51"]),
        (50_998, "/plain", 429, all, r#""all";r=0;t=1"#, ["4", "0", "1"]),
        (1, "/plain", 200, all, r#""all";r=3;t=60"#, ["4", "3", "60"]),
        (0, "/none", 404, all, r#""all";r=2;t=60"#, ["4", "2", "60"]),
    ] {
        clock.advance(Duration::from_millis(advance));
        let answer = get(address, path, &[]);
        assert_eq!((answer.status, reported(&answer)), (status, (policy, states)), "{path}");
        assert_eq!(answer.header("retry-after").is_some(), status == 429, "{path}");
        assert_eq!(legacy_of(&answer), legacy, "{path}");
    }
}

fn legacy_of(answer: &Response) -> [&str; 3] {
    ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"]
        .map(|name| answer.header(name).unwrap_or("none"))
}

/// Asks a server with `limit`, 2 a minute for each route and client. The path `/exempt` is exempt.
pub(crate) fn assert_takes_routes_and_clients_as_keys(
    address: SocketAddr,
    limiter: &RateLimiter,
    limit: &Limit,
) {
    let ask = |path, client| get(address, path, &[&format!("x-forwarded-for: {client}")]);
    for (paths, client, statuses) in [
        // Neither the parameters in the path nor the hops that the client sends change the key.
        (["/hi/1", "/hi/2", "/hi/3"], "6.6.6.6, 1.1.1.1", [200, 200, 429]),
        (["/hi/3", "/plain", "/hi/3"], "1.1.1.1", [429, 200, 429]),
        // All paths without a route share one key.
        (["/x", "/y", "/z"], "1.1.1.1", [404, 404, 429]),
        (["/hi/3", "/plain", "/hi/3"], "2.2.2.2", [200; 3]),
        (["/exempt"; 3], "1.1.1.1", [404; 3]),
    ] {
        assert_eq!(paths.map(|path| ask(path, client).status), statuses, "{paths:?} {client}");
    }
    let by_text = poll_once(limiter.peek(limit, ("/hi/{id}", "1.1.1.1"), 1));
    assert!(!by_text.expect("embedded").allowed, "the key is the text of both");
    let answer = ask("/once", "2001:db8::1:2");
    assert_eq!((answer.status, &*answer.body), (200, "2001:db8::/64"));
    let other = ask("/once", "2001:db8::3:4");
    assert_eq!(reported(&other).1, r#""once";r=0;t=3600, "routes";r=0;t=60"#);
}
