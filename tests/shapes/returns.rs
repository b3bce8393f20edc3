//! What a rejected call returns: errors made from the rejection, `None`, own types, the `Result` of an `impl Trait`,
//! and the value of `on_limited`.

use std::num::ParseIntError;
use std::rc::Rc;

use ratelimit_runtime::{FromRejection, Rejection, rate_limit};

#[derive(Debug)]
enum AppError {
    Busy(Rejection),
    #[allow(dead_code, reason = "read by `Debug` only")]
    Parse(ParseIntError),
}

impl From<Rejection> for AppError {
    fn from(rejection: Rejection) -> Self {
        AppError::Busy(rejection)
    }
}

impl From<ParseIntError> for AppError {
    fn from(error: ParseIntError) -> Self {
        AppError::Parse(error)
    }
}

#[derive(Debug, PartialEq)]
enum Reply {
    Text(&'static str),
    Busy,
}

impl FromRejection for Reply {
    fn from_rejection(_: Rejection) -> Self {
        Reply::Busy
    }
}

limited! {
    ("2/h") async fn own_error(text: &str) -> Result<i32, AppError> { Ok(text.parse::<i32>()?) }
    ("1/h") async fn option() -> Option<u8> {
        let first = [1_u8].first()?;
        Some(*first)
    }
    ("1/h") async fn own_type() -> Reply { Reply::Text("hi") }
    ("1/h", on_limited = replies::busy) async fn by_path() -> u16 { 200 }
}

#[tokio::test]
async fn converts_the_rejection_to_the_return_type() {
    assert_eq!(own_error("1").await.unwrap(), 1);
    assert!(matches!(own_error("x").await, Err(AppError::Parse(_))));
    assert!(matches!(own_error("1").await, Err(AppError::Busy(Rejection::Limited { .. }))));
    assert_eq!((option().await, option().await), (Some(1), None));
    assert_eq!((own_type().await, own_type().await), (Reply::Text("hi"), Reply::Busy));
}

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
}

#[tokio::test]
async fn wraps_impl_trait_in_a_result() {
    assert_eq!(page("a".to_owned(), false).await.respond(), "a!");
    assert_eq!(page("a".to_owned(), true).await.respond(), "early");
    assert_eq!(page("a".to_owned(), false).await.respond(), "rejected by page");

    let site = Site { name: "s".to_owned() };
    assert_eq!(site.render("ab").await.respond(), "s/ab/2");
    assert_eq!(site.render("ab").await.respond(), "rejected by site");
}

mod replies {
    use ratelimit_runtime::Rejection;

    pub(crate) fn busy(rejection: Rejection) -> u16 {
        rejection.retry_after().map_or(503, |_| 429)
    }
}

/// The closure uses an argument that the body owns.
#[rate_limit(period = "1h", threshold = 1, key = name, on_limited = |rejection| {
    format!("{name}: {}", rejection.name().ends_with("by_closure"))
})]
async fn by_closure(name: String) -> impl Respond {
    name
}

#[rate_limit(period = "1h", threshold = 1, on_limited = move |_: Rejection| -> () { *hits += 1 })]
async fn of_unit(hits: &mut u64) {}

#[tokio::test]
async fn returns_the_value_of_on_limited() {
    assert_eq!((by_path().await, by_path().await), (200, 429));
    assert_eq!(by_closure("n".to_owned()).await.respond(), "n");
    assert_eq!(by_closure("n".to_owned()).await.respond(), "n: true");
    let mut hits = 0;
    for _ in 0..3 {
        of_unit(&mut hits).await;
    }
    assert_eq!(hits, 2);
}
