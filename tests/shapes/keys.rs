//! Keys of every form: expressions, format strings, and arguments that patterns destructure. Different values are
//! different keys. A key is borrowed, so the body still owns the arguments.

use ratelimit_runtime::{Rejection, rate_limit};

#[derive(Debug, PartialEq)]
struct User {
    id: u64,
    tenant: String,
    pair: (u8, char),
}

fn user() -> User {
    User { id: 1, tenant: "t".to_owned(), pair: (10, 'x') }
}

impl User {
    async fn label(&self) -> String {
        format!("{}/{}", self.tenant, self.id)
    }
}

#[rate_limit(period = "1h", threshold = 1, key = (tenant, ip))]
async fn tuple(tenant: String, ip: String) -> Option<String> {
    let (tenant, ip): (String, String) = (tenant, ip);
    Some(tenant + &ip)
}

limited! {
    (period = "1h", threshold = 1, key = ((user.tenant, (user.id, "x")), (method,)))
        async fn nested(user: User, method: &String) -> Option<User> { Some(user) }
    (period = "1h", threshold = 1, key = if admin { "admin" } else { name.as_str() })
        async fn condition(admin: bool, name: String) -> Option<String> { Some(name) }
    (period = "1h", threshold = 1, key = text.parse::<u64>()? as u8)
        async fn fallible(text: &str) -> anyhow::Result<()> { Ok(()) }
    // A comma that ends no argument, and a cost of an argument that the body owns.
    (period = "1h", threshold = 4, key = names.first().map_or("none", |name: &String| name),
     cost = names.len() as u64)
        async fn counted(names: Vec<String>) -> Option<Vec<String>> { Some(names) }
    (period = "1h", threshold = 1, key = user.label().await)
        async fn awaited(user: User) -> Option<User> { Some(user) }
    (period = "1h", threshold = 1, key = "{a}:{b}")
        async fn joined(a: &str, b: String) -> Option<String> { Some(a.to_owned() + &b) }
}

#[tokio::test]
async fn keys_are_expressions() {
    let [a, b, ab] = ["a", "b", "ab"].map(str::to_owned);
    assert_eq!(tuple(a.clone(), b.clone()).await, Some(ab.clone()));
    assert_eq!(tuple(a.clone(), b.clone()).await, None);
    assert!(tuple(ab, String::new()).await.is_some());

    assert_eq!((nested(user(), &a).await, nested(user(), &a).await), (Some(user()), None));
    assert!(nested(user(), &b).await.is_some());

    assert!(condition(true, a.clone()).await.is_some());
    assert!(condition(true, b.clone()).await.is_none());
    assert!(condition(false, b).await.is_some());

    assert!(fallible("x").await.unwrap_err().is::<std::num::ParseIntError>());
    assert!(fallible("1").await.is_ok());
    assert!(fallible("257").await.unwrap_err().is::<Rejection>());

    assert!(counted(vec![a.clone(); 3]).await.is_some());
    assert!(counted(vec![a.clone(); 2]).await.is_none());
    assert!(counted(vec![a]).await.is_some());
    assert!(counted(vec![]).await.is_some(), "another key, and no unit");

    assert_eq!((awaited(user()).await, awaited(user()).await), (Some(user()), None));
}

#[rate_limit(period = "1h", threshold = 1, key = r"{{\}}{user.pair.0:#04x}{user.pair.1:?}{type}")]
async fn r#match(user: User, r#type: &str) -> Result<User, Rejection> {
    Ok(user)
}

struct Path<T>(T);

#[rate_limit("1/h", key = "{id}/{name}/{a}-{b}-{c}/{pair.1:?}/{side}/{text}")]
async fn patterns(
    Path(id): Path<u64>,
    User { tenant: name, .. }: User,
    (a, &(b, [_, c, ..])): (u8, &(u8, [u8; 4])),
    pair @ (first, _): (u8, Option<u8>),
    (Ok(side) | Err(side)): Result<u8, u8>,
    mut text: String,
    _: u8,
) -> Option<String> {
    text.push_str(&name);
    Some(format!("{text}{}", id + u64::from(a + b + c + pair.0 + first + side)))
}

#[tokio::test]
async fn keys_are_formats_of_arguments_and_patterns() {
    assert!(joined("a:b", "c".to_owned()).await.is_some());
    assert!(joined("a", "b:c".to_owned()).await.is_some());
    assert!(joined("a", "b:c".to_owned()).await.is_none());

    assert_eq!(r#match(user(), "abc").await, Ok(user()));
    assert!(r#match(user(), "abc").await.unwrap_err().name().ends_with("::match"));
    assert!(r#match(User { pair: (11, 'x'), ..user() }, "abc").await.is_ok());

    let call = async |id, list: [u8; 4], first, side, text: &str| {
        let (list, pair) = ((2, list), (first, Some(1)));
        patterns(Path(id), user(), (1, &list), pair, side, text.to_owned(), 0).await
    };
    assert_eq!(call(1, [3, 4, 5, 6], 2, Ok(7), "a").await.as_deref(), Some("at19"));
    assert_eq!(call(1, [0, 4, 0, 0], 3, Err(7), "a").await, None, "the same key");
    assert!(call(2, [0, 4, 0, 0], 3, Err(7), "a").await.is_some());
    assert!(call(1, [0, 5, 0, 0], 3, Err(7), "a").await.is_some());
    assert!(call(1, [0, 4, 0, 0], 3, Ok(8), "a").await.is_some());
    assert!(call(1, [0, 4, 0, 0], 3, Ok(7), "b").await.is_some());
}
