//! Measures what a limiter adds to a program: crates that it depends on, bytes of its binary, and the processor time to
//! build it. One program is a service of axum with one route, the other a small program of tokio that limits by key.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Scale;
use crate::table::{Better, Block, Column, Kind, Row, Table};

/// The name of a program, its dependencies except the common ones, and the code that creates the limiter.
type Program = (&'static str, &'static str, &'static str);

const RUNTIME: &str =
    "tokio = { version = \"1\", features = [\"net\", \"rt-multi-thread\", \"time\"] }\n";

const SMALL: [(Program, Kind); 3] = [
    (
        (
            "small, ours",
            "ratelimit-runtime = { path = '{root}/ratelimit-runtime', default-features = false }",
            "
        const LIMIT: ratelimit_runtime::Limit =
            ratelimit_runtime::Limit::token_bucket(\"api\", 5, std::time::Duration::from_secs(1));
        let limiter = ratelimit_runtime::RateLimiter::embedded();
        let admits = |key: &str| limiter.check_blocking(&LIMIT, key, 1).is_ok();",
        ),
        Kind::Ours,
    ),
    (
        (
            "small, governor",
            "governor = { version = \"0.10\", default-features = false, \
             features = [\"std\", \"dashmap\", \"quanta\"] }",
            "
        let quota = governor::Quota::per_second(std::num::NonZeroU32::new(5).unwrap());
        let limiter = governor::RateLimiter::keyed(quota);
        let admits = |key: &str| limiter.check_key(&key.to_owned()).is_ok();",
        ),
        Kind::Peer,
    ),
    (("small, no limiter", "", "let admits = |key: &str| !key.is_empty();"), Kind::Beside),
];

const BARE: Program = ("bare", "", "");

const OURS: &str = "
    let api = ratelimit_runtime::Limit::token_bucket(\"api\", 100, std::time::Duration::from_secs(60));
    let clients = ratelimit_runtime::web::Clients::direct();
    let layer = ratelimit_runtime::web::RateLimitLayer::new();
    let app = app.layer(layer.limit(api, move |request| clients.identify(request)));";

const THEIRS: &str = "
    let config = tower_governor::governor::GovernorConfigBuilder::default().finish().unwrap();
    let app = app.layer(tower_governor::GovernorLayer::new(std::sync::Arc::new(config)));";

const ALL: [(Program, Kind); 3] = [
    (
        (
            "ours",
            "ratelimit-runtime = { path = '{root}/ratelimit-runtime', features = [\"axum\"] }",
            OURS,
        ),
        Kind::Ours,
    ),
    (
        (
            "ours, without Redis",
            "ratelimit-runtime = { path = '{root}/ratelimit-runtime', default-features = false, \
             features = [\"axum\"] }",
            OURS,
        ),
        Kind::Beside,
    ),
    (
        (
            "tower_governor",
            "tower_governor = { version = \"0.8\", default-features = false, features = [\"axum\"] }",
            THEIRS,
        ),
        Kind::Peer,
    ),
];

/// The crates that a service of axum depends on, and the bytes of its binary.
fn service((name, dependencies, layer): Program, scale: &Scale) -> [f64; 2] {
    let source = format!(
        "fn main() {{
    let app = axum::Router::new().route(\"/\", axum::routing::get(async || \"hello\"));{layer}
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {{
        let listener = tokio::net::TcpListener::bind(\"127.0.0.1:0\").await.unwrap();
        let app = app.into_make_service_with_connect_info::<std::net::SocketAddr>();
        axum::serve(listener, app).await.unwrap();
    }});
}}
"
    );
    let dependencies = format!("axum = \"0.8\"\n{RUNTIME}{dependencies}");
    let [crates, bytes, _] = measured(name, &dependencies, &source, scale);
    [crates, bytes]
}

/// The bytes of the binary of a small program, and the seconds of processor time to build it.
fn small((name, dependencies, limiter): Program, scale: &Scale) -> [f64; 2] {
    let source = format!(
        "fn main() {{
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {{
        {limiter}
        for key in std::env::args() {{
            println!(\"{{}}\", admits(&key));
        }}
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }});
}}
"
    );
    let [_, bytes, seconds] = measured(name, &format!("{RUNTIME}{dependencies}"), &source, scale);
    [bytes, seconds]
}

/// The crates that a program depends on, the bytes of its binary, and the seconds of processor time to build it.
fn measured(name: &str, dependencies: &str, source: &str, scale: &Scale) -> [f64; 3] {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let package = name.replace([' ', ','], "");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("footprint").join(&package);
    fs::create_dir_all(folder.join("src")).expect("a folder");
    let dependencies = dependencies.replace("{root}", &root.display().to_string());
    let manifest = format!(
        "[package]\nname = \"{package}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n\
         [profile.release]\nstrip = true\n[dependencies]\n{dependencies}\n"
    );
    fs::write(folder.join("Cargo.toml"), manifest).expect("written");
    fs::write(folder.join("src/main.rs"), source).expect("written");
    // The dependencies are those of this workspace, so that cargo downloads none.
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock")).expect("copied");
    // Each program has a folder of its own, so that it builds everything.
    let target: PathBuf = folder.join("target");
    let cargo = |arguments: &[&str]| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(arguments).current_dir(&folder).env("CARGO_TARGET_DIR", &target);
        let output = cargo.output().expect("cargo runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let tree = cargo(&["tree", "--edges", "normal", "--prefix", "none", "--no-dedupe"]);
    let mut crates: Vec<&str> =
        tree.lines().filter_map(|line| line.split(" (").next()).map(str::trim).collect();
    crates.sort_unstable();
    crates.dedup();
    let build: &[&str] = if scale.quick { &["build"] } else { &["build", "--release"] };
    let _ = fs::remove_dir_all(&target);
    let before = seconds_of_children();
    cargo(&[build, &["--quiet"]].concat());
    let seconds = seconds_of_children() - before;
    let profile = if scale.quick { "debug" } else { "release" };
    let binary = fs::metadata(target.join(profile).join(&package)).expect("a binary");
    [crates.len() as f64, binary.len() as f64, seconds]
}

/// Returns the processor time of all programs that this one has started and that have ended, in seconds.
fn seconds_of_children() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("Linux");
    // The name of the program can contain spaces.
    let (_, fields) = stat.rsplit_once(") ").expect("a name");
    let fields: Vec<f64> =
        fields.split(' ').map(|field| field.parse().unwrap_or_default()).collect();
    // Hundredths of a second in user and in kernel mode.
    (fields[13] + fields[14]) / 100.0
}

pub(crate) fn measure(scale: &Scale) -> Vec<Block> {
    let bare = service(BARE, scale);
    let all = ALL.map(|(program, _)| service(program, scale));
    let table = |id, title, unit, figure: usize, divisor: f64| {
        let added = all.iter().map(|one| (one[figure] - bare[figure]) / divisor);
        let table = Table {
            title,
            unit,
            better: Better::Less,
            by: "what is added",
            columns: ALL.map(|((name, ..), kind)| Column::new(name, kind)).into(),
            rows: vec![Row::of("a layer with a limit for each client", added)],
        };
        Block::table(id, table)
    };
    let small = SMALL.map(|(program, _)| small(program, scale));
    let small_table = |id, title, unit, figure: usize, divisor: f64| {
        let name = |name: &'static str| name.trim_start_matches("small, ");
        let table = Table {
            title,
            unit,
            better: Better::Less,
            by: "a program of tokio",
            columns: SMALL.map(|((full, ..), kind)| Column::new(name(full), kind)).into(),
            rows: vec![Row::of("a bucket for each key", small.map(|one| one[figure] / divisor))],
        };
        Block::table(id, table)
    };
    vec![
        small_table(
            "footprint-small",
            "The binary of a small program, without default features",
            "KiB, built with `--release` and stripped",
            0,
            1024.0,
        ),
        small_table(
            "footprint-build",
            "The time to build a small program, without default features",
            "seconds of processor time, with `--release`",
            1,
            1.0,
        ),
        table(
            "footprint-binary",
            "What a limiter adds to the binary of a service of axum",
            "KiB, built with `--release` and stripped",
            1,
            1024.0,
        ),
        table(
            "footprint-crates",
            "What a limiter adds to the dependencies of a service of axum",
            "crates",
            0,
            1.0,
        ),
    ]
}
