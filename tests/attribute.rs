//! Mistakes with the words and the place they are reported in; the shapes that are right are in
//! `tests/shapes`.
//!
//! After a change of a message, `TRYBUILD=overwrite tests/run --test attribute` writes the
//! expectations anew. Read every one of them.

use std::process::Command;

/// The compiler whose own words some expectations hold.
const RUSTC: &str = "rustc 1.95.";

#[test]
fn attribute() {
    let cases = trybuild::TestCases::new();
    cases.pass("attribute/pass/*.rs");
    cases.compile_fail("attribute/fail/*.rs");

    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output().expect("rustc runs").stdout;
    if version.starts_with(RUSTC.as_bytes()) {
        cases.compile_fail("attribute/fail/rustc/*.rs");
    } else {
        println!("tests/attribute/fail/rustc holds the words of {RUSTC}, not of this compiler");
    }
}
