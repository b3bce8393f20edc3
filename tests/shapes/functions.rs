//! Methods with every receiver, trait methods, generic and nested functions, and functions from `macro_rules!`.

use std::fmt::Display;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ratelimit_runtime::{Key, RateLimiter, Rejection, rate_limit};

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
    let run = async {
        let mut a = Tenant::new("a");
        assert_eq!((a.by_reference().await, a.by_reference().await), (Some("a"), None));
        assert!(Tenant::new("b").by_reference().await.is_some());
        assert_eq!(a.by_mutable_reference().await, Some(1));
        assert_eq!(a.by_mutable_reference().await, None);
        assert_eq!(a.calls, 1, "a rejected call does not run");
        assert_eq!(Tenant::new("a").by_value().await.as_deref(), Some("a!"));
        assert!(Tenant::new("a").by_value().await.is_none());
        let shared = Arc::new(Tenant::new("a"));
        assert_eq!((Arc::clone(&shared).by_arc().await, shared.by_arc().await), (Some(0), None));
        assert_eq!(Pin::new(&mut a).by_pin().await, Some(1));
        assert_eq!(Pin::new(&mut a).by_pin().await, None);
        assert!(Tenant::associated().await.is_some());
        assert!(Tenant::associated().await.is_none());

        assert_eq!(a.send("ann").await.as_deref(), Some("ann@a"));
        assert!(a.send("ann").await.is_none());
        assert!(a.send("bob").await.is_some());
        assert_eq!((a.ping().await, a.ping().await, a.ping().await), (Some(1), Some(1), None));
    };
    RateLimiter::embedded().scope(run).await;
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
    let run = async {
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
    };
    RateLimiter::embedded().scope(run).await;
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
    let run = async {
        assert_eq!(outer().await, Ok(7));
        assert!(outer().await.unwrap_err().name().ends_with("::inner"));
        assert_eq!(outer().await.unwrap_err().name(), concat!(module_path!(), "::outer"));
    };
    RateLimiter::embedded().scope(run).await;
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
    let run = async {
        assert_eq!((first(1).await, first(1).await), (Some(1), None));
        assert_eq!((second(1).await, second(1).await, second(2).await), (Some(1), None, Some(2)));
        assert_eq!(format!("{:?}", third(1).await), "Ok(1)");
        assert!(format!("{:?}", third(1).await).starts_with("Err"));
    };
    RateLimiter::embedded().scope(run).await;
}
