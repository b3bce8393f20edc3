//! Measures what a limiter adds to a program: crates that it depends on, and bytes of its binary. The program is a
//! service of axum with one route.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Scale;
use crate::table::{Better, Block, Column, Kind, Row, Table};

/// The name of a program, its dependencies beside axum and tokio, and its layer.
type Program = (&'static str, &'static str, &'static str);

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

/// The crates that a program depends on, and the bytes of its binary.
fn measured((name, dependencies, layer): Program, scale: &Scale) -> [f64; 2] {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let package = name.replace([' ', ','], "");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("footprint").join(&package);
    std::fs::create_dir_all(folder.join("src")).expect("a folder");
    let dependencies = dependencies.replace("{root}", &root.display().to_string());
    let manifest = format!(
        "[package]\nname = \"{package}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n\
         [profile.release]\nstrip = true\n[dependencies]\naxum = \"0.8\"\n\
         tokio = {{ version = \"1\", features = [\"net\", \"rt-multi-thread\"] }}\n{dependencies}\n"
    );
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
    std::fs::write(folder.join("Cargo.toml"), manifest).expect("written");
    std::fs::write(folder.join("src/main.rs"), source).expect("written");
    // The dependencies are those of this workspace, so that cargo downloads none.
    std::fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock")).expect("copied");
    let target: PathBuf = folder.with_file_name("target");
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
    cargo(&[build, &["--quiet"]].concat());
    let profile = if scale.quick { "debug" } else { "release" };
    let binary = std::fs::metadata(target.join(profile).join(&package)).expect("a binary");
    [crates.len() as f64, binary.len() as f64]
}

pub(crate) fn measure(scale: &Scale) -> Vec<Block> {
    let bare = measured(BARE, scale);
    let all = ALL.map(|(program, _)| measured(program, scale));
    let table = |id, title, unit, figure: usize, divisor: f64| {
        let added = all.iter().map(|one| (one[figure] - bare[figure]) / divisor);
        let table = Table {
            title,
            unit,
            better: Better::Less,
            by: "what is added",
            columns: ALL.map(|((name, ..), kind)| Column::new(name, kind)).into(),
            rows: vec![Row::of("a layer with a limit for each client", added)],
            chart: None,
        };
        Block::table(id, table)
    };
    vec![
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
