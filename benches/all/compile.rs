//! Measures the time to compile a crate of annotated functions, and a crate of the same functions without the
//! attribute.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::Scale;
use crate::table::{Better, Block, Column, Kind, Row, Table};
use crate::turns::in_turns;

const FUNCTIONS: usize = 200;

pub(crate) fn measure(scale: &Scale) -> Block {
    let crates = [true, false].map(Crate::new);
    let builds: &[&str] = if scale.quick { &["check"] } else { &["check", "build"] };
    let rows = builds.iter().map(|build| {
        let took = in_turns(scale.rounds, &crates, |made| [made.seconds(build)]);
        Row::of(format!("`cargo {build}`"), took.iter().map(|[seconds]| *seconds))
    });
    Block::table(
        "attribute-compile",
        Table {
            title: "Compiling a crate of 200 small functions",
            unit: "seconds, dependencies built before",
            better: Better::Less,
            by: "command",
            rows: rows.collect(),
            columns: vec![Column::new("annotated", Kind::Ours), Column::new("bare", Kind::Beside)],
            chart: None,
        },
    )
}

/// A crate to compile.
struct Crate {
    folder: PathBuf,
}

impl Crate {
    fn new(annotated: bool) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let name = if annotated { "annotated" } else { "bare" };
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compile").join(name);
        std::fs::create_dir_all(folder.join("src")).expect("a folder");
        let manifest = format!(
            "[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n\
             [dependencies]\nratelimit-runtime = {{ path = '{}' }}\n",
            root.join("ratelimit-runtime").display()
        );
        std::fs::write(folder.join("Cargo.toml"), manifest).expect("written");
        // The dependencies are those of this workspace, so that cargo downloads none.
        std::fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock")).expect("copied");
        std::fs::write(folder.join("src/lib.rs"), source(annotated)).expect("written");
        Self { folder }
    }

    /// Compiles this crate again, but not its dependencies.
    fn seconds(&self, build: &str) -> f64 {
        let source = self.folder.join("src/lib.rs");
        let text = std::fs::read_to_string(&source).expect("read");
        std::fs::write(&source, text + "\n").expect("written");
        let target = self.folder.with_file_name("target");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args([build, "--quiet"]).current_dir(&self.folder);
        cargo.env("CARGO_TARGET_DIR", target).env("CARGO_INCREMENTAL", "0");
        let start = Instant::now();
        assert!(cargo.status().expect("cargo runs").success());
        start.elapsed().as_secs_f64()
    }
}

fn source(annotated: bool) -> String {
    let mut source = String::from("use ratelimit_runtime::*;\n");
    let attribute =
        "#[rate_limit(period = 1, threshold = 10, key = \"{tenant}:{user}\", cost = rows)]\n";
    for number in 0..FUNCTIONS {
        let attribute = if annotated { attribute } else { "" };
        write!(
            source,
            "{attribute}pub async fn f{number}(tenant: &str, user: u64, rows: u64) -> Result<String, Rejection> {{\n\
             Ok(format!(\"{{tenant}} {{user}} {{rows}}\"))\n}}\n"
        )
        .expect("text");
    }
    // Code must use the futures, because otherwise the compiler generates no code for them.
    source.push_str("pub fn all() {\n");
    for number in 0..FUNCTIONS {
        writeln!(source, "drop(Box::new(f{number}(\"\", 1, 1)) as Box<dyn Future<Output = _>>);")
            .expect("text");
    }
    source + "}\n"
}
