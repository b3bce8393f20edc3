//! The service of the night: what it needs so that an operator can change its limits.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use ratelimit_runtime::{RateLimiter, Rejection, Rules, rate_limit, set_global};
use tokio::net::TcpListener;

#[rate_limit(name = "api", period = "1h", threshold = 100, key = customer)]
async fn api(Path(customer): Path<String>) -> Result<String, Rejection> {
    Ok(format!("hello {customer}\n"))
}

#[rate_limit(name = "search", period = "1h", threshold = 50, key = customer)]
async fn search(Path(customer): Path<String>) -> Result<String, Rejection> {
    Ok(format!("nothing found for {customer}\n"))
}

/// Runs one process of the service.
#[tokio::main]
pub(crate) async fn serve(url: &str) {
    // Counts and rules are in Redis, and operators may see the names of customers.
    let builder = RateLimiter::builder().redis(url).rules(Rules::redis()).log_keys(true);
    let limiter = builder.build().expect("valid");
    limiter.ping().await.expect("ready");
    set_global(limiter).expect("the first limiter");
    let router =
        Router::new().route("/api/{customer}", get(api)).route("/search/{customer}", get(search));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    println!("{}", listener.local_addr().expect("an address"));
    axum::serve(listener, router).await.expect("it serves");
}

/// A process of the service, which runs until it is dropped.
pub(crate) struct ServiceProcess {
    process: Child,
    pub(crate) address: SocketAddr,
}

impl ServiceProcess {
    pub(crate) fn start(url: &str) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let mut command = Command::new(program);
        command.args(["service", url]).stdout(Stdio::piped());
        let mut process = command.spawn().expect("a process");
        let mut line = String::new();
        let output = process.stdout.as_mut().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("its address");
        Self { process, address: line.trim().parse().expect("an address") }
    }
}

impl Drop for ServiceProcess {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
