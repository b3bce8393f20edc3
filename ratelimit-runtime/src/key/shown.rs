//! Keys as operators see them, in events and in terminals. Clients choose keys, so a key must not be able to move the
//! cursor, to reorder the text around it, or to look like another key.

/// Returns the text of a key, as [`KeyWriter`](super::KeyWriter) writes it, with only visible characters. `%` and two
/// hexadecimal digits stand for each byte that is not UTF-8, and for each byte of a control or an invisible
/// character. [`OwnedKey::parse`](super::OwnedKey::parse) reads it.
pub(crate) fn shown(written: &[u8]) -> String {
    let mut text = String::with_capacity(written.len());
    for chunk in written.utf8_chunks() {
        for character in chunk.valid().chars() {
            if is_invisible(character) {
                character
                    .encode_utf8(&mut [0; 4])
                    .bytes()
                    .for_each(|byte| push_hex(&mut text, byte));
            } else {
                text.push(character);
            }
        }
        chunk.invalid().iter().for_each(|byte| push_hex(&mut text, *byte));
    }
    text
}

/// Returns the byte that `%` and two digits at the start of `text` stand for, if [`shown`] can write it so.
pub(super) fn shown_byte(text: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = *text else { return None };
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    };
    let byte = digit(high)? << 4 | digit(low)?;
    (byte.is_ascii_control() || !byte.is_ascii()).then_some(byte)
}

/// Returns whether a character is a control, or has no width, or changes the direction of the text.
fn is_invisible(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

fn push_hex(text: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    text.push('%');
    for digit in [byte >> 4, byte & 15] {
        text.push(char::from(DIGITS[usize::from(digit)]));
    }
}
