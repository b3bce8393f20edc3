//! The Redis key of a count can be parsed back into algorithm, period, name and key, so two different
//! counts never share one. No value opens or closes the hash tag. A stored key has the same fingerprint
//! as the original. A long key is shortened.

#![cfg_attr(fuzzing, no_main)]
#![allow(dead_code, unused_imports, unused_macros, reason = "a target uses a part of the files")]

#[path = "../../ratelimit-runtime/src/algorithm/mod.rs"]
mod algorithm;
#[path = "../../ratelimit-runtime/src/key/mod.rs"]
mod key;
#[path = "../../ratelimit-runtime/src/limit/mod.rs"]
mod limit;
#[path = "../../ratelimit-runtime/src/printing.rs"]
mod printing;
#[path = "../../ratelimit-runtime/src/text/mod.rs"]
mod text;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use arbitrary::Arbitrary;
use ratelimit_fuzz::target;

use self::key::{Formatted, Key, KeyWriter, OwnedKey, Secret, put_count_name};
use self::limit::{Algorithm, Limit};

static SECRET: LazyLock<Secret> = LazyLock::new(Secret::random);

/// A key as a user can write it.
#[derive(Arbitrary, Debug)]
enum KeyInput {
    Value(KeyValue),
    Format(Vec<FormatPart>),
}

#[derive(Arbitrary, Debug)]
enum KeyValue {
    Nothing,
    Text(String),
    Bytes(Vec<u8>),
    Signed(i128),
    Unsigned(u64),
    Truth(bool),
    Letter(char),
    Address(IpAddr),
    One(Box<KeyValue>),
    Two(Box<[KeyValue; 2]>),
    Three(Box<[KeyValue; 3]>),
}

/// A part of a format string.
#[derive(Arbitrary, Debug)]
enum FormatPart {
    Text(Symbols),
    Arg(String),
}

/// A text of characters with and without a special meaning. There are only a few such texts, because
/// the texts of limits and of format strings are never freed.
#[derive(Arbitrary, Debug)]
struct Symbols([u8; 4]);

impl Symbols {
    fn text(&self) -> &'static str {
        static TEXTS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
        let letters = ["a", ":", "{", "}", "%", "(", ")", "1s", ""];
        let text: String = self.0.iter().map(|it| letters[usize::from(*it) % 9]).collect();
        let mut texts = TEXTS.lock().expect("no panic while locked");
        if let Some(text) = texts.get(&*text) {
            return text;
        }
        let text: &'static str = text.leak();
        texts.insert(text);
        text
    }
}

impl Key for KeyValue {
    fn write(&self, out: &mut KeyWriter<'_>) {
        match self {
            Self::Nothing => Key::write(&(), out),
            Self::Text(value) => value.write(out),
            Self::Bytes(value) => value.write(out),
            Self::Signed(value) => value.write(out),
            Self::Unsigned(value) => value.write(out),
            Self::Truth(value) => value.write(out),
            Self::Letter(value) => value.write(out),
            Self::Address(value) => value.write(out),
            Self::One(a) => (a,).write(out),
            Self::Two(parts) => {
                let [a, b] = &**parts;
                (a, b).write(out);
            }
            Self::Three(parts) => {
                let [a, b, c] = &**parts;
                (a, b, c).write(out);
            }
        }
    }
}

impl Key for KeyInput {
    fn write(&self, out: &mut KeyWriter<'_>) {
        match self {
            Self::Value(value) => value.write(out),
            Self::Format(parts) => {
                // Like the attribute, but with any number of parts: each is a format string.
                for part in parts {
                    match part {
                        FormatPart::Text(text) => {
                            for (index, text) in text.text().split(':').enumerate() {
                                if index > 0 {
                                    out.separator();
                                }
                                out.bytes(text.as_bytes());
                            }
                        }
                        FormatPart::Arg(arg) => {
                            Formatted(format_args!("{arg}")).write_argument(out)
                        }
                    }
                }
            }
        }
    }
}

/// The structure of a key. Two keys of one shape are the same key.
#[derive(Debug, PartialEq, Eq)]
enum KeyShape {
    Nothing,
    Value(Vec<u8>),
    Group(Vec<KeyShape>),
    /// The parts of a format string: texts, with neighboring ones joined, and groups.
    Row(Vec<KeyShape>),
    Text(Vec<u8>),
}

impl KeyShape {
    /// A text without a colon is a value if it stands alone, and a lone argument is a group.
    fn row(mut row: Vec<Self>, colons: bool) -> Self {
        match &mut row[..] {
            [] => Self::Value(Vec::new()),
            [Self::Text(text)] if !colons => Self::Value(std::mem::take(text)),
            [Self::Group(group)] => Self::Group(std::mem::take(group)),
            _ => Self::Row(row),
        }
    }
}

impl KeyValue {
    fn shape(&self) -> KeyShape {
        let group = |parts: &[Self]| KeyShape::Group(parts.iter().map(Self::shape).collect());
        KeyShape::Value(match self {
            Self::Nothing => return KeyShape::Nothing,
            Self::One(part) => return KeyShape::Group(vec![part.shape()]),
            Self::Two(parts) => return group(&**parts),
            Self::Three(parts) => return group(&**parts),
            Self::Bytes(value) => value.clone(),
            Self::Text(value) => value.as_bytes().to_vec(),
            Self::Signed(value) => value.to_string().into_bytes(),
            Self::Unsigned(value) => value.to_string().into_bytes(),
            Self::Truth(value) => value.to_string().into_bytes(),
            Self::Letter(value) => value.to_string().into_bytes(),
            Self::Address(value) => value.to_string().into_bytes(),
        })
    }
}

impl KeyInput {
    fn shape(&self) -> KeyShape {
        let parts = match self {
            Self::Value(value) => return value.shape(),
            Self::Format(parts) => parts,
        };
        let (mut row, mut colons) = (Vec::new(), false);
        for part in parts {
            match part {
                FormatPart::Arg(arg) => {
                    row.push(KeyShape::Group(vec![KeyShape::Value(arg.as_bytes().to_vec())]));
                }
                FormatPart::Text(text) => {
                    let text = text.text();
                    colons |= text.contains(':');
                    match row.last_mut() {
                        _ if text.is_empty() => {}
                        Some(KeyShape::Text(before)) => before.extend(text.as_bytes()),
                        _ => row.push(KeyShape::Text(text.as_bytes().to_vec())),
                    }
                }
            }
        }
        KeyShape::row(row, colons)
    }
}

#[derive(Arbitrary, Debug)]
struct CountInput {
    algorithm: u8,
    period_us: u64,
    name: Symbols,
    key: KeyInput,
}

impl CountInput {
    fn limit(&self) -> Option<Limit> {
        let algorithm = match self.algorithm % 5 {
            0 => Algorithm::Sliding,
            1 => Algorithm::Fixed,
            2 => Algorithm::SlidingCounter,
            3 => Algorithm::TokenBucket,
            _ => Algorithm::LeakyBucket,
        };
        Limit::new(self.name.text(), algorithm, 1, Duration::from_micros(self.period_us)).ok()
    }
}

/// Returns the Redis key of a count.
fn count_name(limit: &Limit, key: &dyn Key) -> Vec<u8> {
    let mut name = Vec::new();
    put_count_name(&mut name, limit.terms(), key);
    name
}

/// Says whether the name contains the hash of a long key. The parenthesis of the mark is not closed.
fn is_shortened(identity: &[u8]) -> bool {
    let count = |byte| identity.iter().filter(|other| **other == byte).count();
    count(b'(') != count(b')') && !identity.ends_with(b"{(}")
}

/// Parses algorithm, period in microseconds, name and key.
fn parse_identity(identity: &[u8]) -> (String, u64, Vec<u8>, KeyShape) {
    let rest = &mut &*identity;
    let algorithm = String::from_utf8_lossy(until(rest, b":")).into_owned();
    skip(rest, b':');
    let count = String::from_utf8_lossy(until(rest, b"dhmsu")).parse::<u64>().expect("a number");
    let unit = match until(rest, b":") {
        b"d" => 86_400_000_000,
        b"h" => 3_600_000_000,
        b"m" => 60_000_000,
        b"s" => 1_000_000,
        b"ms" => 1_000,
        b"us" => 1,
        unit => panic!("{unit:?} is not a unit"),
    };
    skip(rest, b':');
    let (name, key) = if let Some(name) = rest.strip_suffix(b"%") {
        (name, KeyShape::Nothing)
    } else {
        let name = until(rest, b"{");
        skip(rest, b'{');
        (name, parse_key(rest.strip_suffix(b"}").expect("the end of the hash tag")))
    };
    (algorithm, count * unit, unescaped(name), key)
}

fn parse_key(mut text: &[u8]) -> KeyShape {
    let (mut row, mut colons) = (Vec::new(), false);
    // An empty key: Redis Cluster takes `{}` for no hash tag.
    if text == b"(" {
        text = b"";
    }
    while !text.is_empty() {
        if text[0] == b'(' {
            row.push(parse_part(&mut text));
        } else {
            let plain = until(&mut text, b"(");
            colons |= plain.contains(&b':');
            row.push(KeyShape::Text(unescaped(plain)));
        }
    }
    KeyShape::row(row, colons)
}

/// Parses a group, or a part of one.
fn parse_part(text: &mut &[u8]) -> KeyShape {
    if text[0] != b'(' {
        let part = until(text, b":)");
        return if part == b"%" { KeyShape::Nothing } else { KeyShape::Value(unescaped(part)) };
    }
    let mut parts = Vec::new();
    while text[0] != b')' {
        *text = &text[1..];
        parts.push(parse_part(text));
    }
    skip(text, b')');
    KeyShape::Group(parts)
}

fn until<'a>(text: &mut &'a [u8], ends: &[u8]) -> &'a [u8] {
    let length = text.iter().position(|byte| ends.contains(byte)).unwrap_or(text.len());
    let (part, rest) = text.split_at(length);
    *text = rest;
    part
}

fn skip(text: &mut &[u8], byte: u8) {
    assert_eq!(text[0], byte, "{text:?}");
    *text = &text[1..];
}

fn unescaped(mut text: &[u8]) -> Vec<u8> {
    let mut value = Vec::new();
    loop {
        value.extend(until(&mut text, b"%"));
        if text.is_empty() {
            return value;
        }
        let code = str::from_utf8(&text[1..3]).expect("two digits");
        value.push(u8::from_str_radix(code, 16).expect("two digits"));
        text = &text[3..];
    }
}

target!(|count: CountInput| {
    let Some(limit) = count.limit() else { return };
    let identity = count_name(&limit, &count.key);
    // A stored key is the same key.
    let stored = OwnedKey::of(&count.key);
    assert_eq!(count_name(&limit, &stored), identity);
    let fingerprint = |key: &dyn Key| SECRET.fingerprint(key);
    assert_eq!(fingerprint(&stored), fingerprint(&count.key), "{}", identity.escape_ascii());

    let shape = count.key.shape();
    let tags = |brace| identity.iter().filter(|byte| **byte == brace).count();
    let tagged = usize::from(shape != KeyShape::Nothing);
    assert_eq!((tags(b'{'), tags(b'}')), (tagged, tagged), "{}", identity.escape_ascii());

    if is_shortened(&identity) {
        let key = identity.rsplit(|byte| *byte == b'{').next().expect("a key");
        let (beginning, mark) = key.split_at(key.len() - "(sha256:}".len() - 64);
        assert!(beginning.len() <= 128, "{}", identity.escape_ascii());
        assert!(mark.starts_with(b"(sha256:"), "{}", identity.escape_ascii());
        return;
    }

    let algorithm = limit.algorithm().as_str().to_owned();
    let expected = (algorithm, limit.terms().period_us(), limit.name().as_bytes().to_vec(), shape);
    assert_eq!(parse_identity(&identity), expected, "{}", identity.escape_ascii());
});
