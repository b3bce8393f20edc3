//! axum: the layer, annotated handlers behind it, and the headers that report the limits of both.

mod headers;
mod rejections;
mod setup;

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::{get as route_get, post};
use ratelimit_runtime::web::Client;
use ratelimit_runtime::{Limit, Rejection, rate_limit};

use crate::MINUTE;

const ALL: Limit = Limit::fixed("all", 4, MINUTE);

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

#[rate_limit(period = "1m", threshold = 4, algo = "fixed", key = (), name = "all")]
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

#[rate_limit(period = 1, threshold = 2, cost = crate::three(), name = "costly")]
async fn costly() -> Result<(), Rejection> {
    Ok(())
}

struct Own(Rejection);

impl From<Rejection> for Own {
    fn from(rejection: Rejection) -> Self {
        Self(rejection)
    }
}

impl IntoResponse for Own {
    fn into_response(self) -> axum::response::Response {
        (StatusCode::IM_A_TEAPOT, format!("own: {}", self.0.name())).into_response()
    }
}

#[rate_limit(period = "1h", threshold = 1, name = "own")]
async fn own() -> Result<(), Own> {
    Ok(())
}

fn router() -> Router {
    Router::new()
        .route("/hi/{id}", route_get(hi))
        .route("/sized/{size}", route_get(sized))
        .route("/again", route_get(again))
        .route("/tried", route_get(tried))
        .route("/both", route_get(both))
        .route("/costly", route_get(costly))
        .route("/own", route_get(own))
        .route("/plain", route_get(async || "plain"))
        .route("/upload", post(async |body: String| body))
}
