//! `-> impl Trait`: the function returns a `Result` with the hidden type, and `return` still works.

use std::fmt::{Debug, Display};
use std::rc::Rc;

use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};

/// Like the response traits of web frameworks: implemented for a `Result` of two responses.
trait Respond {
    fn respond(self) -> String;
}

impl Respond for String {
    fn respond(self) -> String {
        self
    }
}

impl<T: Respond> Respond for Result<T, Rejection> {
    fn respond(self) -> String {
        self.map_or_else(|rejection| format!("rejected by {}", rejection.name()), Respond::respond)
    }
}

#[rate_limit(period = "1h", threshold = 2, name = "page")]
async fn page(mut title: String, early: bool) -> impl Respond {
    if early {
        return "early".to_owned();
    }
    title.push('!');
    title
}

struct Site {
    name: String,
}

impl Site {
    #[rate_limit(period = "1h", threshold = 1, name = "site", key = self.name)]
    async fn render(&self, part: &str) -> impl Respond {
        let rc = Rc::new(part.len());
        format!("{}/{part}/{rc}", self.name)
    }

    #[rate_limit(period = "1h", threshold = 1, key = self.name)]
    async fn consume(self) -> impl Debug {
        self.name
    }
}

#[rate_limit(period = "1h", threshold = 1)]
async fn inside(text: &str) -> Result<impl Display, Rejection> {
    Ok(text.len())
}

#[rate_limit(period = "1h", threshold = 1, on_limited = |_| "later".to_owned())]
async fn with_on_limited() -> impl Respond {
    "now".to_owned()
}

async fn run() {
    assert_eq!(page("a".to_owned(), false).await.respond(), "a!");
    assert_eq!(page("a".to_owned(), true).await.respond(), "early");
    assert_eq!(page("a".to_owned(), false).await.respond(), "rejected by page");

    let site = Site { name: "s".to_owned() };
    assert_eq!(site.render("ab").await.respond(), "s/ab/2");
    assert_eq!(site.render("ab").await.respond(), "rejected by site");
    assert_eq!(format!("{:?}", site.consume().await), r#"Ok("s")"#);

    assert_eq!(inside("abc").await.unwrap().to_string(), "3");
    assert!(inside("abc").await.is_err());

    assert_eq!(with_on_limited().await.respond(), "now");
    assert_eq!(with_on_limited().await.respond(), "later");
}

#[tokio::test]
async fn wraps_impl_trait_in_a_result() {
    RateLimiter::embedded().scope(run()).await;
}
