//! Wrong uses of the attribute, with the message and the place of each error that the compiler shows. Most are in
//! `tests/shapes/mistakes.rs`, which compiles nothing. Valid uses are in `tests/shapes`.
//!
//! After a change of a message, `TRYBUILD=overwrite tests/run --test attribute` rewrites the expected errors. Read the
//! difference before you commit it.

use std::process::Command;

/// The compiler that reports the errors in `fail/rustc`. Other versions word them differently.
const RUSTC: &str = "rustc 1.95.";

#[test]
fn reports_mistakes_at_their_place() {
    let cases = trybuild::TestCases::new();
    // A case that passes makes trybuild generate code for all cases. A bad constant is found only then.
    cases.pass("pass/*.rs");
    cases.compile_fail("fail/*.rs");

    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output().expect("rustc runs").stdout;
    if version.starts_with(RUSTC.as_bytes()) {
        cases.compile_fail("fail/rustc/*.rs");
    } else {
        println!("skipping tests/attribute/fail/rustc: this compiler is not {RUSTC}");
    }
}
