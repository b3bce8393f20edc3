//! Programs as a user writes them who has read the README alone, and guesses the rest.

/// An axum handler with state: a limit per user, on the limiter of the state.
mod handler {
    use std::sync::Arc;

    use axum::Router;
    use axum::body::Body;
    use axum::extract::{Json, Path, State};
    use axum::http::{Request, StatusCode};
    use axum::response::{IntoResponse, Response};
    use axum::routing::get;
    use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};
    use tower::ServiceExt;

    struct AppState {
        limiter: RateLimiter,
        greeting: &'static str,
    }

    enum AppError {
        Limited(Rejection),
        NotFound,
    }

    impl From<Rejection> for AppError {
        fn from(rejection: Rejection) -> Self {
            Self::Limited(rejection)
        }
    }

    impl IntoResponse for AppError {
        fn into_response(self) -> Response {
            match self {
                Self::Limited(rejection) => rejection.into_response(),
                Self::NotFound => StatusCode::NOT_FOUND.into_response(),
            }
        }
    }

    #[rate_limit(period = "1m", threshold = 2, key = user, limiter = state.limiter)]
    async fn hello(
        State(state): State<Arc<AppState>>,
        Path(user): Path<String>,
    ) -> Result<Json<String>, AppError> {
        if user == "nobody" {
            return Err(AppError::NotFound);
        }
        Ok(Json(format!("{} {user}", state.greeting)))
    }

    #[rate_limit("1/minute", key = user, limiter = state.limiter)]
    async fn orders(
        State(state): State<Arc<AppState>>,
        Path(user): Path<u64>,
    ) -> impl IntoResponse {
        format!("{}, {user}: no orders", state.greeting).into_response()
    }

    #[tokio::test]
    async fn limits_each_user() -> Result<(), Box<dyn std::error::Error>> {
        let limiter = RateLimiter::builder().build()?;
        let app = Router::new()
            .route("/hello/{user}", get(hello))
            .route("/orders/{user}", get(orders))
            .with_state(Arc::new(AppState { limiter, greeting: "hi" }));
        for (path, expected) in [
            ("/hello/ann", 200),
            ("/hello/ann", 200),
            ("/hello/ann", 429),
            ("/hello/nobody", 404),
            ("/orders/7", 200),
            ("/orders/7", 429),
        ] {
            let response = app.clone().oneshot(Request::get(path).body(Body::empty())?).await?;
            assert_eq!(response.status(), expected, "{path}");
            assert_eq!(response.headers().contains_key("retry-after"), expected == 429);
        }
        Ok(())
    }
}

/// Plans by tenant, and what is left of a tenant.
mod plans {
    use std::time::Duration;

    use ratelimit_runtime::{Limit, RateLimiter, Rejection, current, rate_limit};

    const REPORTS: Limit = Limit::fixed("reports", 10, Duration::from_secs(3_600));

    struct Tenant {
        id: u64,
        is_paying: bool,
    }

    impl Tenant {
        fn quota(&self) -> u64 {
            if self.is_paying { 5 } else { 1 }
        }
    }

    #[rate_limit(limit = REPORTS, threshold = tenant.quota(), key = tenant.id)]
    async fn report(tenant: &Tenant) -> Result<(), Rejection> {
        Ok(())
    }

    async fn left(tenant: &Tenant) -> Result<u64, Box<dyn std::error::Error>> {
        let limit = REPORTS.try_amounts(tenant.quota(), None)?;
        Ok(current()?.peek(&limit, tenant.id, 1).await?.remaining)
    }

    #[tokio::test]
    async fn each_plan_has_its_quota() -> Result<(), Box<dyn std::error::Error>> {
        let paying = Tenant { id: 1, is_paying: true };
        let free = Tenant { id: 2, is_paying: false };
        let run = async {
            report(&paying).await?;
            report(&free).await?;
            assert_eq!((left(&paying).await?, left(&free).await?), (4, 0));
            assert!(report(&free).await.is_err());
            report(&paying).await?;
            Ok(())
        };
        RateLimiter::embedded().scope(run).await
    }
}

/// A budget of tokens, of which a call knows its part afterwards.
mod budget {
    use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};

    struct Answer {
        tokens: u64,
    }

    #[rate_limit(
        name = "tokens",
        period = "1h",
        threshold = 1_000,
        key = user,
        cost = estimate,
        settle = |answer| answer.as_ref().map_or(0, |answer| answer.tokens)
    )]
    async fn ask(user: &str, estimate: u64, tokens: u64) -> Result<Answer, Rejection> {
        Ok(Answer { tokens })
    }

    #[tokio::test]
    async fn unused_tokens_come_back() {
        let run = async {
            ask("ann", 800, 100).await.expect("admitted");
            ask("ann", 800, 900).await.expect("700 came back");
            ask("ann", 100, 1).await.err().expect("nothing is left");
        };
        RateLimiter::embedded().scope(run).await;
    }
}

/// A worker that waits for its turn.
mod worker {
    use std::time::Duration;

    use ratelimit_runtime::{Limit, RateLimiter, Rejection, rate_limit};

    const PARTNER: Limit =
        Limit::sliding("partner", 3, Duration::from_millis(50)).wait(Duration::from_secs(10));

    #[rate_limit(period = "10ms", threshold = 1, algo = "leaky_bucket", wait = "10s")]
    async fn send(mail: &str) -> Result<usize, Rejection> {
        Ok(mail.len())
    }

    #[tokio::test]
    async fn every_job_is_done() -> Result<(), Rejection> {
        let limiter = RateLimiter::embedded();
        for _ in 0..7 {
            limiter.check(&PARTNER, "partner", 1).await?;
        }
        let run = async {
            for mail in ["one", "two", "three"] {
                send(mail).await?;
            }
            Ok(())
        };
        limiter.scope(run).await
    }
}

/// Logins: failures are counted, and a success forgets them.
mod login {
    use std::time::Duration;

    use ratelimit_runtime::{Limit, RateLimiter, Rejection, current, rate_limit};

    const LOGIN: Limit = Limit::sliding("login", 3, Duration::from_secs(900));

    #[derive(Debug)]
    enum LoginError {
        WrongPassword,
        Locked(Duration),
    }

    impl From<Rejection> for LoginError {
        fn from(rejection: Rejection) -> Self {
            Self::Locked(rejection.retry_after().unwrap_or_default())
        }
    }

    #[rate_limit(limit = LOGIN, key = user, count_if = Result::is_err)]
    async fn log_in(user: &str, password: &str) -> Result<(), LoginError> {
        if password != "secret" {
            return Err(LoginError::WrongPassword);
        }
        if let Ok(limiter) = current() {
            let _ = limiter.reset(&LOGIN, user).await;
        }
        Ok(())
    }

    #[tokio::test]
    async fn three_failures_lock_a_user() {
        let run = async {
            for password in ["a", "b", "secret", "c", "d", "e"] {
                let result = log_in("ann", password).await;
                assert!(!matches!(result, Err(LoginError::Locked(_))), "{password}");
            }
            let locked = log_in("ann", "secret").await;
            assert!(
                matches!(locked, Err(LoginError::Locked(wait)) if !wait.is_zero()),
                "{locked:?}"
            );
            log_in("bob", "secret").await.expect("another user");
        };
        RateLimiter::embedded().scope(run).await;
    }
}

/// A socket: two open ones per user, and messages at a rate.
mod socket {
    use std::time::Duration;

    use ratelimit_runtime::{Limit, RateLimiter, Rejection, rate_limit};

    const MESSAGES: Limit = Limit::token_bucket("messages", 2, Duration::from_secs(3_600));

    /// Runs while the socket is open.
    #[rate_limit(in_flight = 2, hold = "30s", key = user, limiter = limiter)]
    async fn serve(limiter: &RateLimiter, user: u64, messages: u64) -> Result<u64, Rejection> {
        let mut answered = 0;
        for _ in 0..messages {
            tokio::task::yield_now().await;
            match limiter.check(&MESSAGES, user, 1).await {
                Ok(_) => answered += 1,
                Err(Rejection::Limited { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(answered)
    }

    #[tokio::test]
    async fn sockets_and_messages_are_limited() {
        let limiter = RateLimiter::embedded();
        let [one, two, three] = [(); 3].map(|()| serve(&limiter, 7, 3));
        let (one, two, three) = tokio::join!(one, two, three);
        let answered = [one, two].map(|it| it.expect("open")).iter().sum::<u64>();
        assert!(answered == 2 && three.is_err(), "{answered} {three:?}");
        serve(&limiter, 7, 0).await.expect("the others have ended");
    }
}

/// An operator's page of the program itself: who is limited, and what to do about it.
mod operator {
    use std::time::Duration;

    use ratelimit_runtime::{Limit, RateLimiter, Rejection, Rule, RuleSet};

    const API: Limit = Limit::sliding("api", 2, Duration::from_secs(3_600));

    #[tokio::test]
    async fn sees_who_is_limited_and_changes_it() -> Result<(), Box<dyn std::error::Error>> {
        let limiter = RateLimiter::builder().log_keys(true).build()?;
        for _ in 0..5 {
            let _ = limiter.check(&API, "mallory", 1).await;
        }
        let worst = &limiter.operator().rejected_keys(20)[0];
        assert_eq!((worst.limit.as_str(), &*worst.key, worst.rejected), ("api", "mallory", 3));

        let mut rules = RuleSet::from_toml("[api]\nthreshold = 9\n")?;
        rules.set_key("api", "mallory", Rule::new().blocked(true))?;
        limiter.set_rules(rules)?;
        let blocked = limiter.check(&API, "mallory", 1).await;
        assert!(matches!(blocked, Err(Rejection::Blocked { .. })), "{blocked:?}");

        limiter.set_rules(RuleSet::new())?;
        limiter.reset(&API, "mallory").await?;
        assert_eq!(limiter.check(&API, "mallory", 1).await?.remaining, 1);
        limiter.block(&API, "mallory", Duration::from_secs(600)).await?;
        assert!(limiter.check(&API, "mallory", 1).await.is_err());
        limiter.unblock(&API, "mallory").await?;
        limiter.check(&API, "mallory", 1).await?;
        Ok(())
    }
}
