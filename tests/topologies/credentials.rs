//! Credentials that change: a provider that the limiter asks at each login, and before they expire.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ratelimit_runtime::{
    BuildError, Builder, Credentials, CredentialsError, CredentialsProvider, Limit, OnError,
    PasswordFile, RateLimiter, RateLimiterSettings, Rejection, Source, StoreError,
};
use redis::Connection;
use support::cluster::Cluster;
use support::limits::HOUR;
use support::server::{Server, command, stat};
use support::wait::wait_until;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::{denying, denying_builder, error_of, first_decision};

const LIMIT: Limit = Limit::fixed("logged in", 1_000_000, HOUR);

/// Changes the passwords of the user `limits`: `>added`, `<removed`.
fn change(connection: &mut Connection, passwords: &str) {
    command::<()>(connection, &format!("ACL SETUSER limits on ~* +@all {passwords}"));
}

fn cut(connection: &mut Connection) {
    command::<i64>(connection, "CLIENT KILL USER limits");
}

fn url_of(server: &Server) -> String {
    format!("redis://limits@127.0.0.1:{}", server.port())
}

/// Passwords that a provider returns one after the other, the last one again and again; and how often it was asked.
#[derive(Clone)]
struct Passwords(Arc<(Mutex<VecDeque<Credentials>>, AtomicU64)>);

impl Passwords {
    fn new(passwords: impl IntoIterator<Item = Credentials>) -> Self {
        Self(Arc::new((Mutex::new(passwords.into_iter().collect()), AtomicU64::new(0))))
    }

    fn asked(&self) -> u64 {
        self.0.1.load(SeqCst)
    }
}

impl CredentialsProvider for Passwords {
    async fn credentials(&self) -> Result<Credentials, CredentialsError> {
        self.0.1.fetch_add(1, SeqCst);
        let mut passwords = self.0.0.lock().expect("no panic");
        let next = if passwords.len() > 1 { passwords.pop_front() } else { None };
        next.or_else(|| passwords.front().cloned()).ok_or_else(|| "no password".into())
    }
}

fn start_with(password: &str) -> (Server, Connection) {
    let server = Server::start();
    let mut connection = server.connection();
    change(&mut connection, password);
    (server, connection)
}

fn providing(server: &Server, provider: impl CredentialsProvider) -> RateLimiter {
    denying_builder(&url_of(server)).credentials(provider).build().expect("valid")
}

async fn wait_for_redis(limiter: &RateLimiter) {
    let decide = async || limiter.check(&LIMIT, "key", 1).await.expect("admitted").source;
    wait_until(async || decide().await == Source::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_changes_all_the_time_is_no_outage() {
    let (server, mut connection) = start_with(">0");
    let current = Arc::new(AtomicU64::new(0));
    let provided = Arc::clone(&current);
    let limiter = providing(&server, move || {
        let password = provided.load(SeqCst).to_string();
        async { Ok(Credentials::password(password)) }
    });
    first_decision(&limiter, &LIMIT, "key").await;
    let is_over = Arc::new(AtomicBool::new(false));
    let mut calls = JoinSet::new();
    for _ in 0..8 {
        let (limiter, is_over) = (limiter.clone(), Arc::clone(&is_over));
        calls.spawn(async move {
            let (mut decided, mut longest) = (Instant::now(), Duration::ZERO);
            while !is_over.load(SeqCst) {
                match limiter.check(&LIMIT, "key", 1).await {
                    Ok(_) => {
                        longest = longest.max(decided.elapsed());
                        decided = Instant::now();
                    }
                    // The request was on its way, or the connection was.
                    Err(Rejection::Unavailable {
                        error: StoreError::Connection { .. }, ..
                    }) => {}
                    Err(other) => panic!("{other:?}"),
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            longest
        });
    }
    for password in 1..=20 {
        change(&mut connection, &format!(">{password}"));
        current.store(password, SeqCst);
        change(&mut connection, &format!("<{}", password - 1));
        cut(&mut connection);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    is_over.store(true, SeqCst);
    let longest = calls.join_all().await.into_iter().max().expect("calls");
    println!("no call was undecided for longer than {longest:?}");
    assert!(longest < Duration::from_secs(5), "{longest:?}");
}

#[tokio::test]
async fn a_refused_password_is_asked_for_once_more() {
    let (server, _) = start_with(">new");
    let passwords = Passwords::new(["old", "new"].map(Credentials::password));
    let limiter = providing(&server, passwords.clone());
    limiter.check(&LIMIT, "key", 1).await.expect("the second password is right");
    assert_eq!(passwords.asked(), 2);

    let wrong = Passwords::new([Credentials::password("secret-one")]);
    let limiter = providing(&server, wrong.clone());
    let error = error_of(&limiter, &LIMIT).await;
    assert!(
        matches!(&error, StoreError::Server { code, .. } if **code == *"WRONGPASS"),
        "{error:?}"
    );
    assert!(wrong.asked() >= 2 && !format!("{error:?}{error}").contains("secret-one"), "{error}");
}

#[tokio::test]
async fn credentials_can_name_their_user() {
    let (server, _) = start_with(">right");
    let credentials = Credentials::password("right").user("limits");
    assert!(!format!("{credentials:?}").contains("right"), "{credentials:?}");
    let limiter = denying_builder(&server.url).credentials(Passwords::new([credentials]));
    limiter.build().expect("valid").check(&LIMIT, "key", 1).await.expect("admitted");
    let clients: String = server.command("CLIENT LIST");
    let own = clients.lines().find(|line| line.contains("name=ratelimit")).expect("its name");
    assert!(own.contains("user=limits"), "{own}");
    assert!(!own.contains("lib-name=") || own.contains("lib-name=ratelimit-runtime"), "{own}");
}

/// Returns a builder whose calls fall back after a short time.
fn impatient(server: &Server) -> Builder {
    RateLimiter::builder().redis(url_of(server)).deadline(Duration::from_millis(200))
}

/// A provider that fails, panics or hangs holds up no call beyond its deadline.
#[tokio::test]
async fn a_provider_that_fails_leaves_calls_to_the_fallback_until_it_works() {
    let (server, _) = start_with(">right");
    for text in ["no token", "panic", "no answer within 900ms"] {
        let works = Arc::new(AtomicBool::new(false));
        let state = Arc::clone(&works);
        let provider = move || {
            let works = state.load(SeqCst);
            async move {
                match text {
                    _ if works => Ok(Credentials::password("right")),
                    "no token" => Err(io::Error::other(text).into()),
                    "panic" => panic!("on purpose"),
                    _ => pending().await,
                }
            }
        };
        let limiter = impatient(&server).credentials(provider.clone()).build().expect("valid");
        for _ in 0..3 {
            let decision = limiter.check(&LIMIT, "key", 1).await.expect("the fallback admits it");
            assert_eq!(decision.source, Source::Fallback, "{text}");
        }
        let error = error_of(&providing(&server, provider), &LIMIT).await.to_string();
        assert!(error.contains("the provider of credentials failed: "), "{error}");
        assert!(error.contains(text), "{error}");
        works.store(true, SeqCst);
        wait_for_redis(&limiter).await;
    }
}

/// The breaker is open since the first probe, which did not wait for the login.
#[tokio::test]
async fn a_provider_that_is_slower_than_the_deadline_logs_in_or_its_refusal_is_named() {
    let (server, _) = start_with(">right");
    let slow = |password: &'static str, millis| {
        let provider = move || async move {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            Ok(Credentials::password(password))
        };
        impatient(&server).credentials(provider)
    };
    wait_for_redis(&slow("right", 500).build().expect("valid")).await;
    let limiter = slow("wrong", 300).on_error(OnError::Deny).build().expect("valid");
    wait_until(async || match error_of(&limiter, &LIMIT).await {
        StoreError::CircuitOpen { cause, .. } => cause.to_string().contains("WRONGPASS"),
        _ => false,
    })
    .await;
}

/// The nodes do not answer, and then refuse the password, while their breakers are open. At last, each has a login.
#[tokio::test]
async fn a_cluster_names_the_newest_error_of_its_nodes_until_all_have_credentials() {
    let cluster = Cluster::start(0);
    for node in 0..cluster.len() {
        change(&mut cluster.connection(node), ">right");
    }
    let url = cluster.url().replace("redis+cluster://", "redis+cluster://limits@");
    let password = Arc::new(Mutex::new(None));
    let current = Arc::clone(&password);
    let provider = move || {
        let password = *current.lock().expect("no panic");
        async move {
            match password {
                Some(password) => Ok(Credentials::password(password)),
                None => pending().await,
            }
        }
    };
    let builder = denying_builder(&url).deadline(Duration::from_millis(200)).credentials(provider);
    let limiter = builder.build().expect("valid");
    let set = |new| *password.lock().expect("no panic") = Some(new);
    let is_named = async |words: &str| error_of(&limiter, &LIMIT).await.to_string().contains(words);
    wait_until(async || is_named("no connection").await).await;
    set("wrong");
    wait_until(async || is_named("WRONGPASS").await).await;
    set("right");
    for key in 0..30 {
        wait_until(async || limiter.check(&LIMIT, key, 1).await.is_ok()).await;
    }
    for node in 0..cluster.len() {
        let clients: String = command(&mut cluster.connection(node), "CLIENT LIST");
        let mut own = clients.lines().filter(|line| line.contains("name=ratelimit"));
        assert!(own.any(|line| line.contains("user=limits")), "{clients}");
    }
}

/// Passes one connection at a time on, and lets the server forget who it is when it is `reset`. Returns its port.
async fn forgetful_proxy(server: u16, reset: Arc<Semaphore>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.expect("accepted");
            let mut server = TcpStream::connect(("127.0.0.1", server)).await.expect("connected");
            let passing = tokio::io::copy_bidirectional(&mut client, &mut server);
            tokio::select! {
                _ = passing => continue,
                permit = reset.acquire() => permit.expect("open").forget(),
            }
            server.write_all(b"RESET\r\n").await.expect("sent");
            let mut reply = [0; 8];
            server.read_exact(&mut reply).await.expect("a reply");
            assert_eq!(&reply, b"+RESET\r\n");
            tokio::spawn(
                async move { tokio::io::copy_bidirectional(&mut client, &mut server).await },
            );
        }
    });
    port
}

#[tokio::test]
async fn a_server_that_asks_for_a_login_again_gets_one() {
    let (server, mut connection) = start_with(">right");
    command::<()>(&mut connection, "CONFIG SET requirepass x");
    let reset = Arc::new(Semaphore::new(0));
    let port = forgetful_proxy(server.port(), Arc::clone(&reset)).await;
    let url = format!("redis://limits:right@127.0.0.1:{port}");
    let limiter = denying(&url);
    for remaining in (0..5).map(|call| 999_999 - call) {
        let decision = limiter.check(&LIMIT, "key", 1).await.expect("decided");
        assert_eq!(decision.remaining, remaining, "each call is executed once");
        let resets = stat(&mut connection, "cmdstat_reset:calls=");
        reset.add_permits(1);
        wait_until(async || stat(&mut connection, "cmdstat_reset:calls=") > resets).await;
    }

    let without = denying(&server.url);
    let error = error_of(&without, &LIMIT).await;
    assert!(matches!(&error, StoreError::Server { code, .. } if **code == *"NOAUTH"), "{error:?}");
}

#[tokio::test]
async fn open_connections_are_authenticated_before_the_credentials_expire() {
    let (server, mut connection) = start_with(">right");
    let credentials = Credentials::password("right").valid_for(Duration::from_millis(1_200));
    let passwords = Passwords::new([credentials]);
    let limiter = providing(&server, passwords.clone());
    limiter.check(&LIMIT, "key", 1).await.expect("admitted");
    let connections = stat(&mut connection, "total_connections_received:");
    let logins = stat(&mut connection, "cmdstat_auth:calls=");
    wait_until(async || passwords.asked() >= 3).await;
    limiter.check(&LIMIT, "key", 1).await.expect("admitted");
    wait_until(async || stat(&mut connection, "cmdstat_auth:calls=") >= logins + 2).await;
    assert_eq!(stat(&mut connection, "total_connections_received:"), connections);
    drop(limiter);
    let asked = passwords.asked();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(passwords.asked(), asked, "nobody asks for a limiter that is gone");
}

#[tokio::test]
async fn credentials_are_used_again_until_most_of_their_lifetime_has_passed() {
    let (server, mut connection) = start_with(">first");
    let valid = |password: &str| Credentials::password(password).valid_for(HOUR);
    let passwords = Passwords::new(["first", "second"].map(valid));
    let limiter = providing(&server, passwords.clone());
    for _ in 0..3 {
        first_decision(&limiter, &LIMIT, "key").await;
        cut(&mut connection);
    }
    first_decision(&limiter, &LIMIT, "key").await;
    assert_eq!(passwords.asked(), 1);
    // A server that refuses them ends that.
    change(&mut connection, "resetpass >second");
    cut(&mut connection);
    first_decision(&limiter, &LIMIT, "key").await;
    assert_eq!(passwords.asked(), 2);
}

#[tokio::test]
async fn a_password_in_a_file_is_read_at_each_login() {
    let (server, mut connection) = start_with(">first");
    let file = tempfile::NamedTempFile::new().expect("a file");
    let write = |text: &str| std::fs::write(file.path(), text).expect("written");
    write("first\n");
    let limiter = providing(&server, PasswordFile::new(file.path()));
    limiter.check(&LIMIT, "key", 1).await.expect("admitted");
    change(&mut connection, "resetpass >second");
    write("second");
    cut(&mut connection);
    first_decision(&limiter, &LIMIT, "key").await;

    let missing = file.path().with_extension("missing");
    write("\n");
    for (path, words) in
        [(&*missing, &*missing.display().to_string()), (file.path(), "there is no password in")]
    {
        let limiter = providing(&server, PasswordFile::new(path));
        let error = error_of(&limiter, &LIMIT).await.to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[tokio::test]
async fn the_third_protocol_logs_in_as_the_second_does() {
    let (server, _) = start_with(">right");
    let address = format!("127.0.0.1:{}/3?protocol=resp3", server.port());
    for url in [format!("redis://limits:right@{address}"), format!("redis://{address}")] {
        let limiter = denying(&url);
        limiter.check(&LIMIT, "key", 1).await.expect("admitted");
        let permit = limiter.acquire(&LIMIT, "key", 5).await.expect("admitted");
        permit.settle(2);
        limiter.flush().await.expect("settled");
    }
    let provided = Passwords::new([Credentials::password("right").user("limits")]);
    let limiter = denying_builder(&format!("redis://{address}")).credentials(provided);
    limiter.build().expect("valid").check(&LIMIT, "key", 1).await.expect("admitted");
    let clients: String = server.command("CLIENT LIST");
    let own: Vec<_> = clients.lines().filter(|line| line.contains("name=ratelimit")).collect();
    assert!(own.iter().all(|line| line.contains(" db=3 ") && line.contains("resp=3")), "{own:?}");
}

#[test]
fn credentials_without_a_url_are_an_error() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let settings = format!("password_file = {file:?}");
    let settings: RateLimiterSettings = toml::from_str(&settings).expect("valid");
    let of_settings = settings.builder().expect("a file that exists");
    let of_builder = RateLimiter::builder().credentials(Passwords::new([]));
    for builder in [of_settings.clone(), of_builder] {
        let Err(error) = builder.build() else { panic!("no URL") };
        assert_eq!(error, BuildError::CredentialsWithoutRedis);
        assert!(error.to_string().contains("set `redis_url`"), "{error}");
    }
    of_settings.redis("redis://127.0.0.1:1").build().expect("a URL");
}

#[test]
fn a_url_with_a_password_beside_a_provider_is_an_error() {
    let passwords = Passwords::new([]);
    for url in
        ["redis://limits:secret@host", "redis+cluster://:secret@host", "unix:///s?pass=secret"]
    {
        let error = denying_builder(url).credentials(passwords.clone()).build().err();
        let Some(error @ BuildError::InvalidUrl { .. }) = error else { panic!("{url}: {error:?}") };
        assert!(error.to_string().contains("`credentials`"), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
