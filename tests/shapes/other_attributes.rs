//! The attribute above and below the attributes of other crates.

use actix_web::{App, HttpResponse, test as actix};
use axum::extract::Path;
use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};
use tonic::{Code, Request, Response, Status};

#[rate_limit(period = "1h", threshold = 1, key = id)]
#[tracing::instrument(skip(secret))]
async fn above_instrument(id: u64, secret: &str) -> Result<usize, Rejection> {
    Ok(secret.len())
}

#[tracing::instrument(skip(secret))]
#[rate_limit(period = "1h", threshold = 1, key = "{id}")]
async fn below_instrument(id: u64, secret: &str) -> Result<usize, Rejection> {
    Ok(secret.len())
}

/// A value that cannot be printed: `instrument` records the arguments that have names.
struct Secret(u8);

#[rate_limit(in_flight = 1, scope = "process")]
#[tracing::instrument]
async fn in_flight_above_instrument(_: Secret, Secret(first): Secret) -> Option<u8> {
    Some(first)
}

#[rate_limit(period = "1h", threshold = 1, count_if = Option::is_some)]
#[tracing::instrument]
async fn counted_above_instrument(_: Secret, Secret(first): Secret) -> Option<u8> {
    Some(first)
}

#[rate_limit(period = "1h", threshold = 1, key = id)]
#[axum::debug_handler]
async fn above_handler(Path(id): Path<u64>) -> Result<String, Rejection> {
    Ok(id.to_string())
}

#[axum::debug_handler]
#[rate_limit(period = "1h", threshold = 1, key = id)]
async fn below_handler(Path(id): Path<u64>) -> Result<String, Rejection> {
    Ok(id.to_string())
}

#[rate_limit(period = "1h", threshold = 1, key = *id, on_limited = |_| too_many())]
#[actix_web::get("/above/{id}")]
async fn above_route(id: actix_web::web::Path<u64>) -> HttpResponse {
    HttpResponse::Ok().body(id.to_string())
}

#[actix_web::get("/below/{id}")]
#[rate_limit(period = "1h", threshold = 1, key = *id, on_limited = |_| too_many())]
async fn below_route(id: actix_web::web::Path<u64>) -> HttpResponse {
    HttpResponse::Ok().body(id.to_string())
}

fn too_many() -> HttpResponse {
    HttpResponse::TooManyRequests().finish()
}

/// Like the trait that tonic generates for a service.
#[tonic::async_trait]
trait Greeter: Send + Sync + 'static {
    async fn greet(&self, request: Request<String>) -> Result<Response<String>, Status>;
}

struct Polite;

#[tonic::async_trait]
impl Greeter for Polite {
    #[rate_limit(
        period = "1h",
        threshold = 1,
        key = request.get_ref(),
        on_limited = |rejection| Err(Status::resource_exhausted(rejection.to_string()))
    )]
    async fn greet(&self, request: Request<String>) -> Result<Response<String>, Status> {
        Ok(Response::new(format!("hi {}", request.into_inner())))
    }
}

#[cfg(test)]
#[rate_limit(period = "1h", threshold = 1)]
#[cfg_attr(test, must_use)]
async fn configured() -> Option<()> {
    Some(())
}

#[rate_limit(period = "1h", threshold = 1)]
#[actix_web::test]
async fn above_actix_test() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = "1h", threshold = 1)]
#[tokio::main(flavor = "current_thread")]
async fn above_main() -> Result<u8, Rejection> {
    Ok(7)
}

#[test]
fn checks_a_main_function() {
    assert_eq!(above_main().unwrap(), 7);
}

#[actix_web::test]
async fn limits_actix_routes() {
    let app = App::new().service(above_route).service(below_route);
    let app = actix::init_service(app).await;
    let run = async {
        for (path, status) in [("/above/1", 200), ("/above/1", 429), ("/above/2", 200)] {
            for path in [path, &path.replace("above", "below")] {
                let request = actix::TestRequest::get().uri(path).to_request();
                assert_eq!(actix::call_service(&app, request).await.status(), status, "{path}");
            }
        }
    };
    RateLimiter::embedded().scope(run).await;
}

#[rate_limit(period = "1h", threshold = 1)]
#[tokio::test]
async fn above_test() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = "1h", threshold = 1)]
#[allow(clippy::unused_unit, reason = "tests an attribute below")]
async fn above_allow() -> Option<()> {
    Some(())
}

async fn run() {
    assert_eq!(above_instrument(1, "four").await.unwrap(), 4);
    assert!(above_instrument(1, "four").await.is_err());
    assert_eq!(below_instrument(1, "four").await.unwrap(), 4);
    assert!(below_instrument(1, "four").await.is_err());
    let secret = || Secret(7);
    assert_eq!(in_flight_above_instrument(secret(), secret()).await, Some(7));
    assert_eq!(counted_above_instrument(secret(), secret()).await, Some(7));
    assert_eq!(above_handler(Path(7)).await.unwrap(), "7");
    assert!(above_handler(Path(7)).await.is_err());
    assert_eq!(below_handler(Path(7)).await.unwrap(), "7");
    assert!(below_handler(Path(7)).await.is_err());
    let greet = |name: &str| Polite.greet(Request::new(name.to_owned()));
    assert_eq!(greet("ann").await.unwrap().into_inner(), "hi ann");
    assert_eq!(greet("ann").await.unwrap_err().code(), Code::ResourceExhausted);
    assert!(greet("bob").await.is_ok());
    assert!(configured().await.is_some());
    assert!(above_allow().await.is_some());
    assert!(above_allow().await.is_none());
}

#[tokio::test]
async fn works_beside_other_attributes() {
    RateLimiter::embedded().scope(run()).await;
}
