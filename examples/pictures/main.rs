//! Draws the pictures of the guide "Choosing an algorithm": on virtual time, the embedded store decides one
//! stream of calls by each of the five algorithms, and this program draws the decisions.
//!
//! ```sh
//! cargo run --example pictures             # writes the pictures into docs/pictures
//! cargo run --example pictures -- FOLDER   # writes them into another folder
//! ```
//!
//! `tests/pictures.rs` fails if the pictures of the guide differ from what this program draws.

mod draw;
mod lane;

use std::error::Error;
use std::fmt::Write;
use std::path::PathBuf;
use std::{env, fs};

use crate::lane::Lane;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/pictures");

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(env::args().nth(1).unwrap_or_else(|| FOLDER.to_owned()));
    let lanes = lane::all().await?;
    let mut pictures = vec![("overview", draw::picture("Five algorithms, one traffic", &lanes))];
    for lane in &lanes {
        pictures.push((lane.file(), draw::picture(lane.name, std::slice::from_ref(lane))));
    }

    // rustdoc shows no files beside the page, so its page has the pictures within itself: these
    // definitions come before those at the end of the guide, and the first of a name counts.
    let mut inline = String::new();
    for (name, svg) in &pictures {
        fs::write(folder.join(name).with_extension("svg"), svg)?;
        writeln!(inline, "[picture: {name}]: data:image/svg+xml,{}", encoded(svg))?;
    }
    fs::write(folder.join("inline.md"), inline)?;
    println!("{}", lanes.iter().map(Lane::summary).collect::<Vec<_>>().join("\n"));
    Ok(())
}

/// Percent-encoded, but for what may stand in a URL and means nothing to Markdown.
fn encoded(svg: &str) -> String {
    let mut out = String::new();
    for byte in svg.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'/' | b':' | b'=' | b',' => {
                out.push(byte.into());
            }
            _ => write!(out, "%{byte:02X}").expect("text"),
        }
    }
    out
}
