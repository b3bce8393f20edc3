//! Sets `model`, with which the runtime includes the models that need its private parts.

fn main() {
    println!("cargo::rustc-cfg=model");
    println!("cargo::rerun-if-changed=build.rs");
}
