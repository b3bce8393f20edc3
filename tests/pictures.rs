//! The example `pictures` draws exactly the pictures of the guide.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use support::example::example;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/pictures");

#[test]
fn pictures_are_up_to_date() {
    let folder = tempfile::tempdir().expect("a folder");
    let drawn = example("pictures").arg(folder.path()).output().expect("it runs");
    assert!(drawn.status.success(), "{}", String::from_utf8_lossy(&drawn.stderr));
    let (drawn, kept) = (files(folder.path()), files(Path::new(FOLDER)));
    assert!(drawn.keys().eq(kept.keys()), "{:?} are drawn, {:?} kept", drawn.keys(), kept.keys());
    for (name, text) in &drawn {
        assert!(kept[name] == *text, "{name} is out of date: `cargo run --example pictures`");
    }
}

#[test]
fn the_guide_shows_all_pictures() {
    let guide =
        fs::read_to_string(Path::new(FOLDER).with_file_name("algorithms.md")).expect("the guide");
    let inline = fs::read_to_string(Path::new(FOLDER).join("inline.md")).expect("definitions");
    for name in files(Path::new(FOLDER)).keys().filter_map(|file| file.strip_suffix(".svg")) {
        assert!(guide.contains(&format!("][picture: {name}]")), "{name} is not shown");
        // GitHub shows the file, rustdoc the picture inside the page.
        assert!(guide.contains(&format!("\n[picture: {name}]: pictures/{name}.svg\n")), "{name}");
        assert!(inline.contains(&format!("[picture: {name}]: data:image/svg+xml,")), "{name}");
    }
}

fn files(folder: &Path) -> BTreeMap<String, String> {
    let files = fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file"));
    let read = |path| fs::read_to_string(path).expect("UTF-8");
    files.map(|file| (file.file_name().into_string().expect("UTF-8"), read(file.path()))).collect()
}
