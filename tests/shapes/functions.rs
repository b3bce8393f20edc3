//! Methods with every receiver, trait methods, generic and nested functions, functions from `macro_rules!`, functions
//! that are not async, and other attributes beside this one. Those of actix-web and tonic: `tests/web`, `examples`.

use std::fmt::Display;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use axum::extract::Path;
use ratelimit_runtime::{Key, Rejection, rate_limit};

struct Tenant {
    name: String,
    calls: u64,
}

impl Tenant {
    fn new(name: &str) -> Self {
        Tenant { name: name.to_owned(), calls: 0 }
    }

    #[rate_limit(period = "1h", threshold = 1, key = self.name)]
    async fn by_reference(&self) -> Option<&str> {
        Some(&self.name)
    }

    #[rate_limit(period = "1h", threshold = 1, key = "{self.name}")]
    async fn by_mutable_reference(&mut self) -> Option<u64> {
        self.calls += 1;
        Some(self.calls)
    }

    #[rate_limit(period = "1h", threshold = 1, key = self.name)]
    async fn by_value(mut self) -> Option<String> {
        self.name.push('!');
        Some(self.name)
    }

    #[rate_limit(period = "1h", threshold = 1, key = self.name.as_str())]
    async fn by_arc(self: Arc<Self>) -> Option<u64> {
        Some(self.calls)
    }

    #[rate_limit(period = "1h", threshold = 1, key = "{self.name}")]
    async fn by_pin(self: Pin<&mut Self>) -> Option<u64> {
        Some(self.calls)
    }

    #[rate_limit(period = "1h", threshold = 1)]
    async fn associated() -> Option<Self> {
        Some(Self::new("c"))
    }
}

trait Mailer {
    const DAILY: u64;
    const PERIOD: Duration;

    fn domain(&self) -> &str;

    async fn send(&self, to: &str) -> Option<String>;

    #[rate_limit(period = <Self as Mailer>::PERIOD, threshold = Self::DAILY, key = self.domain())]
    async fn ping(&self) -> Option<u8> {
        Some(1)
    }
}

impl Mailer for Tenant {
    const DAILY: u64 = 2;
    const PERIOD: Duration = Duration::from_secs(86_400);

    fn domain(&self) -> &str {
        &self.name
    }

    #[rate_limit(period = "1d", threshold = 1, key = (self.domain(), to))]
    async fn send(&self, to: &str) -> Option<String> {
        Some(format!("{to}@{}", self.domain()))
    }
}

#[tokio::test]
async fn limits_methods_with_every_receiver() {
    let mut a = Tenant::new("a");
    assert_eq!((a.by_reference().await, a.by_reference().await), (Some("a"), None));
    assert!(Tenant::new("b").by_reference().await.is_some());
    assert_eq!((a.by_mutable_reference().await, a.by_mutable_reference().await), (Some(1), None));
    assert_eq!(a.calls, 1, "a rejected call does not run");
    let by_value = || Tenant::new("a").by_value();
    assert_eq!((by_value().await.as_deref(), by_value().await), (Some("a!"), None));
    let shared = Arc::new(Tenant::new("a"));
    assert_eq!((Arc::clone(&shared).by_arc().await, shared.by_arc().await), (Some(0), None));
    let pinned = (Pin::new(&mut a).by_pin().await, Pin::new(&mut a).by_pin().await);
    assert_eq!(pinned, (Some(1), None));
    assert!(Tenant::associated().await.is_some() && Tenant::associated().await.is_none());

    assert_eq!(a.send("ann").await.as_deref(), Some("ann@a"));
    assert!(a.send("ann").await.is_none());
    assert!(a.send("bob").await.is_some());
    assert_eq!((a.ping().await, a.ping().await, a.ping().await), (Some(1), Some(1), None));
}

#[rate_limit(period = "1h", threshold = 1, key = (id, first, std::any::type_name::<T>()))]
async fn borrowed<'a, 'b: 'a, T>(id: T, first: &'a str, second: &'b str) -> Option<(T, &'a str)>
where
    T: Key + Clone,
{
    Some((id.clone(), if first.is_empty() { second } else { first }))
}

#[rate_limit(period = "1h", threshold = N, key = "{shown:>8}{N}")]
async fn counted<const N: u64>(shown: impl Display + Clone) -> Option<String> {
    Some(shown.to_string())
}

struct Pool<T> {
    of: T,
}

impl<T: AsRef<str>> Pool<T> {
    const SIZE: u64 = size_of::<T>() as u64;

    #[rate_limit(period = "1h", threshold = Self::SIZE, cost = Self::SIZE, key = self.of.as_ref())]
    async fn take<'a, U: 'a>(&'a self, with: U) -> Option<(&'a T, U)> {
        Some((&self.of, with))
    }
}

#[tokio::test]
async fn limits_generic_functions() {
    assert_eq!(borrowed(1_u8, "", "b").await, Some((1, "b")));
    assert_eq!(borrowed(1_u8, "", "c").await, None);
    assert!(borrowed(1_u16, "", "b").await.is_some(), "the key has the type");

    assert_eq!(counted::<1>(7).await.as_deref(), Some("7"));
    assert!(counted::<1>("7").await.is_none(), "7 and \"7\" are one key of one function");
    assert!(counted::<2>(7).await.is_some());
    assert!(counted::<2>(7).await.is_some());
    assert!(counted::<2>(7).await.is_none());

    let pool = Pool { of: "p" };
    assert_eq!((pool.take(1).await, pool.take(1).await), (Some((&"p", 1)), None));
}

/// The items of the body have names that the expansion uses.
#[rate_limit(period = "1h", threshold = 2)]
async fn outer() -> Result<u8, Rejection> {
    use std::convert::identity as check;

    fn refuse(value: u8) -> u8 {
        value
    }

    #[rate_limit(period = "1h", threshold = 1)]
    async fn inner() -> Result<u8, Rejection> {
        Ok(7)
    }

    struct Limit;
    let _ = Limit;

    inner().await.map(check).map(refuse)
}

#[tokio::test]
async fn limits_nested_functions() {
    assert_eq!(outer().await, Ok(7));
    assert!(outer().await.unwrap_err().name().ends_with("::inner"));
    assert_eq!(outer().await.unwrap_err().name(), concat!(module_path!(), "::outer"));
}

/// The compiler wraps fragments in invisible parentheses.
macro_rules! endpoint {
    (
        $vis:vis $name:ident($parameter:ident: $ty:ty) -> $output:ty,
        $period:literal, $threshold:expr, $key:expr, $text:literal, $body:block
    ) => {
        #[rate_limit(period = $period, threshold = $threshold, key = $key, name = $text)]
        $vis async fn $name($parameter: $ty) -> $output $body
    };
}

endpoint!(pub(crate) first(id: u64) -> Option<u64>, "1h", 1, (id, "x"), "one", { Some(id) });
endpoint!(second(id: u64) -> Option<u64>, 3600, 1, "{id}", "two", { Some(id) });

macro_rules! own_argument {
    ($name:ident, $output:ty) => {
        #[rate_limit(period = "1h", threshold = 1, key = "{id}")]
        async fn $name(id: u64) -> $output {
            id
        }
    };
}

own_argument!(third, impl std::fmt::Debug);

#[tokio::test]
async fn limits_functions_from_macro_rules() {
    assert_eq!((first(1).await, first(1).await), (Some(1), None));
    assert_eq!((second(1).await, second(1).await, second(2).await), (Some(1), None, Some(2)));
    assert_eq!(format!("{:?}", third(1).await), "Ok(1)");
    assert!(format!("{:?}", third(1).await).starts_with("Err"));
}

// Functions that are not async. With `scope = "process"`, their calls are decided at once, unless they wait.

struct NamedPool {
    name: String,
}

impl NamedPool {
    #[rate_limit(period = "1h", threshold = 2, scope = "process", key = "{self.name}", cost = n)]
    fn draw(&mut self, n: u64) -> Option<&mut String> {
        self.name.push('x');
        Some(&mut self.name)
    }
}

#[rate_limit(period = "1h", threshold = 1, scope = "process")]
fn hidden(early: bool) -> impl std::fmt::Debug {
    if early {
        return "early";
    }
    "late"
}

#[rate_limit(
    limit(period = "1s", threshold = 5),
    limit(period = "1h", threshold = 1, key = id),
    scope = "process", on_limited = |rejection| rejection.name().len()
)]
fn several(id: u8) -> usize {
    usize::from(id) - usize::from(id)
}

#[tokio::test]
async fn functions_that_are_not_async_are_limited() {
    let mut pool = NamedPool { name: "p".to_owned() };
    assert!(pool.draw(3).is_none());
    assert_eq!(pool.draw(2).map(|name| name.clone()).as_deref(), Some("px"));
    assert_eq!(format!("{:?}", hidden(true)), r#"Ok("early")"#);
    assert!(format!("{:?}", hidden(false)).starts_with("Err"));
    assert_eq!((several(1), several(2)), (0, 0));
    assert_eq!(several(1), concat!(module_path!(), "::several#2").len());
}

#[rate_limit(period = "1h", threshold = 1, scope = "process")]
fn blocking() -> Option<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async { Some(7) })
}

#[tokio::main(flavor = "current_thread")]
#[rate_limit(period = "1h", threshold = 1, scope = "process")]
async fn below_main() -> Option<u8> {
    tokio::task::yield_now().await;
    Some(7)
}

#[rate_limit(period = "1h", threshold = 1, scope = "process", permit = _permit)]
#[track_caller]
fn tracked() -> Result<u32, Rejection> {
    Ok(Location::caller().line())
}

#[rate_limit(period = "1h", threshold = 1, scope = "process", on_limited = |_| 0)]
#[track_caller]
fn tracked_and_hidden() -> impl std::fmt::Debug {
    Location::caller().line()
}

#[rate_limit(algo = "leaky_bucket", period = "1s", threshold = 20, wait = "1s", scope = "process")]
fn patient(id: u8) -> Result<u8, Rejection> {
    Ok(id)
}

/// A body that blocks on a future, or asks for its caller, and calls that wait.
#[test]
fn functions_are_limited_without_a_runtime() {
    assert_eq!([blocking(), blocking()], [Some(7), None]);
    assert_eq!([below_main(), below_main()], [Some(7), None]);
    assert_eq!(tracked(), Ok(line!()));
    assert_eq!(format!("{:?}", tracked_and_hidden()), line!().to_string());
    let start = Instant::now();
    assert_eq!([1, 2, 3].map(patient), [1, 2, 3].map(Ok));
    assert!(start.elapsed() >= Duration::from_millis(100), "{:?}", start.elapsed());
}

// Methods of an `#[async_trait]`, which expands first: the check goes into its boxed block.

struct Tag {
    name: String,
    weight: u64,
}

#[async_trait]
trait Repository: Sync {
    async fn load(&self, id: u64) -> Result<String, Rejection>;

    async fn store(&mut self, id: u64, mut text: String) -> Result<usize, Rejection>;

    #[rate_limit(period = "1h", threshold = 1, key = "{id}")]
    async fn exists(&self, id: u64) -> Option<bool> {
        Some(self.load(id).await.is_ok())
    }

    async fn count() -> Option<u64>
    where
        Self: Sized;

    async fn find(&self, Tag { name, .. }: Tag, (id, _): (u64, u64)) -> Option<String>;
}

struct Memory {
    name: String,
    texts: Vec<String>,
}

#[async_trait]
impl Repository for Memory {
    #[rate_limit(period = "1h", threshold = 2, key = (self.name, id))]
    async fn load(&self, id: u64) -> Result<String, Rejection> {
        if id > 100 {
            return Ok("none".to_owned());
        }
        tokio::task::yield_now().await;
        Ok(format!("{} {id}", self.name))
    }

    #[rate_limit(period = "1h", threshold = 1, key = "{self.name}:{id}:{text}")]
    async fn store(&mut self, id: u64, mut text: String) -> Result<usize, Rejection> {
        text.push_str(&id.to_string());
        self.texts.push(text);
        Ok(self.texts.len())
    }

    #[rate_limit(period = "1h", threshold = 1)]
    async fn count() -> Option<u64> {
        Some(1)
    }

    #[rate_limit(period = "1h", threshold = 3, key = "{self.name}:{name}:{id}", cost = weight)]
    async fn find(&self, Tag { name, weight }: Tag, (id, _): (u64, u64)) -> Option<String> {
        Some(format!("{name} {id} {weight}"))
    }
}

fn assert_send<T: Send>(value: T) -> T {
    value
}

#[tokio::test]
async fn limits_async_trait_methods() {
    let mut memory = Memory { name: "m".to_owned(), texts: Vec::new() };
    let find = async |name: &str, weight, id| {
        assert_send(memory.find(Tag { name: name.to_owned(), weight }, (id, 0))).await
    };
    assert_eq!(find("a", 3, 1).await.as_deref(), Some("a 1 3"));
    assert_eq!((find("a", 1, 1).await, find("a", 4, 2).await), (None, None));
    assert_eq!(find("a", 3, 2).await.as_deref(), Some("a 2 3"));
    assert_eq!(assert_send(memory.load(1)).await.unwrap(), "m 1");
    assert_eq!(memory.load(101).await.unwrap(), "none");
    assert_eq!((memory.exists(1).await, memory.exists(1).await), (Some(true), None));
    assert!(memory.load(1).await.is_err());
    assert_eq!(memory.store(1, "a".to_owned()).await, Ok(1));
    assert!(memory.store(1, "a".to_owned()).await.is_err());
    assert_eq!(memory.store(1, "b".to_owned()).await, Ok(2));
    assert_eq!(memory.texts, ["a1", "b1"]);
    assert_eq!((Memory::count().await, Memory::count().await), (Some(1), None));
}

// The attribute above and below the attributes of other crates.

#[rate_limit(period = "1h", threshold = 1, key = id)]
#[tracing::instrument(skip(secret))]
async fn above_instrument(id: u64, secret: &str) -> Option<usize> {
    Some(secret.len())
}

#[tracing::instrument(skip(secret))]
#[rate_limit(period = "1h", threshold = 1, key = "{id}")]
async fn below_instrument(id: u64, secret: &str) -> Option<usize> {
    Some(secret.len())
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

#[cfg(test)]
#[rate_limit(period = "1h", threshold = 1)]
#[cfg_attr(test, must_use)]
#[allow(clippy::unused_unit, reason = "tests an attribute below")]
async fn configured() -> Option<()> {
    Some(())
}

#[rate_limit(period = "1h", threshold = 1)]
#[tokio::main(flavor = "current_thread")]
async fn above_main() -> Option<u8> {
    Some(7)
}

#[rate_limit(period = "1h", threshold = 1)]
#[actix_web::test]
async fn above_actix_test() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = "1h", threshold = 1)]
#[tokio::test]
async fn above_test() -> Result<(), Rejection> {
    Ok(())
}

#[test]
fn checks_a_main_function() {
    assert_eq!((above_main(), above_main()), (Some(7), None));
}

#[tokio::test]
async fn works_beside_other_attributes() {
    assert_eq!((above_instrument(1, "four").await, above_instrument(1, "").await), (Some(4), None));
    assert_eq!((below_instrument(1, "four").await, below_instrument(1, "").await), (Some(4), None));
    assert_eq!(in_flight_above_instrument(Secret(7), Secret(7)).await, Some(7));
    assert_eq!(counted_above_instrument(Secret(7), Secret(7)).await, Some(7));
    assert_eq!(above_handler(Path(7)).await.unwrap(), "7");
    assert_eq!(below_handler(Path(7)).await.unwrap(), "7");
    assert!(above_handler(Path(7)).await.is_err() && below_handler(Path(7)).await.is_err());
    assert_eq!((configured().await, configured().await), (Some(()), None));
}
