//! Keys from format strings. The attribute expands `key = "..."` to a [`Format`].

use std::fmt;

use super::{Key, KeyWriter};

/// A part of a format string.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'a> {
    /// Text between arguments.
    Text(&'static str),
    /// One argument. Written as a group, so that its text cannot merge with the text beside it.
    Arg(fmt::Arguments<'a>),
}

/// A key that consists of the parts of a format string.
#[derive(Clone, Copy, Debug)]
pub struct Format<'a>(pub &'a [Piece<'a>]);

impl Key for Format<'_> {
    fn write(&self, out: &mut KeyWriter<'_>) {
        for piece in self.0 {
            match piece {
                Piece::Text(text) => out.text(text),
                Piece::Arg(value) => out.group(|out| out.formatted(*value)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_do_not_merge_with_the_text_beside_them() {
        let text = |pieces: &[Piece<'_>]| {
            let mut text = Vec::new();
            KeyWriter::append(&mut text, |out| Format(pieces).write(out));
            String::from_utf8(text).expect("ASCII")
        };
        let [ab, a, b, c, bc] = ["a-b", "a", "b", "c", "b-c"];
        let dash = Piece::Text("-");
        let one = text(&[Piece::Arg(format_args!("{ab}")), dash, Piece::Arg(format_args!("{c}"))]);
        let two = text(&[Piece::Arg(format_args!("{a}")), dash, Piece::Arg(format_args!("{bc}"))]);
        assert_eq!(one, "(a-b)-(c)");
        assert_ne!(one, two);

        let user = text(&[Piece::Text("user:"), Piece::Arg(format_args!("{b}:"))]);
        assert_eq!(user, "user:(b%3A)");
    }
}
