//! The files of the workspace, for tests that read them.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the folder of the workspace, in whichever package the test is.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.ancestors().find(|folder| folder.join("Cargo.lock").is_file());
    root.expect("a workspace").to_owned()
}

/// Returns the files with one of these extensions. Follows no links, and skips hidden folders and those of builds.
pub fn files(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder");
    let of_entry = |path: PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy();
        if path.is_symlink() || name.starts_with('.') || name == "target" {
            return Vec::new();
        }
        if path.is_dir() {
            return files(&path, extensions);
        }
        let is_wanted = |extension: &&str| name.ends_with(&format!(".{extension}"));
        if extensions.iter().any(is_wanted) { vec![path] } else { Vec::new() }
    };
    entries.flat_map(|entry| of_entry(entry.expect("an entry").path())).collect()
}
