//! Prints the public interface of a crate, an item in each line, from the JSON that rustdoc has written about it.
//! Leaves out what follows from the rest: blanket implementations, and `Send` and the other auto traits.

use std::env;
use std::error::Error;

use public_api::Builder;

fn main() -> Result<(), Box<dyn Error>> {
    let file = env::args_os().nth(1).ok_or("usage: interface FILE, which rustdoc has written")?;
    let json = Builder::from_rustdoc_json(file);
    print!("{}", json.omit_blanket_impls(true).omit_auto_trait_impls(true).build()?);
    Ok(())
}
