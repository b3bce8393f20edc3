//! The examples, as the programs that they are.

use std::process::Command;
use std::sync::Once;

pub fn example(name: &str) -> Command {
    static BUILT: Once = Once::new();
    let test = std::env::current_exe().expect("this program has a path");
    // The folder of a profile has its name, except that of `dev`.
    let folder = test.ancestors().nth(2).expect("the folder of the profile");
    let profile = folder.file_name().filter(|name| *name != "debug").unwrap_or("dev".as_ref());
    BUILT.call_once(|| {
        // With the profile and the features of this test, so that nothing is compiled twice.
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--workspace", "--all-features", "--bins", "--examples"]);
        cargo.arg("--profile").arg(profile);
        // What describes the package of this test: a build script that reads it would run again.
        for (name, _) in std::env::vars_os() {
            let variable = name.to_string_lossy();
            if variable.starts_with("CARGO_PKG_") || variable.starts_with("CARGO_MANIFEST_") {
                cargo.env_remove(&name);
            }
        }
        assert!(cargo.status().expect("cargo runs").success(), "the examples do not build");
    });
    // Those with packages of their own are no examples to cargo; see `examples/launch`.
    let program = folder.join(name);
    Command::new(if program.exists() { program } else { folder.join("examples").join(name) })
}
