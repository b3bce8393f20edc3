//! From the identity of a count one can read what it counts: algorithm, period, name and key. So two
//! counts have one identity only if they are one. And no value opens or closes the hash tag. A key that is
//! kept for later has the fingerprint that it had.

#![no_main]
#![allow(dead_code, unused_imports, reason = "the runtime uses more of its files than this does")]

#[path = "../../ratelimit-runtime/src/algorithm/mod.rs"]
mod algorithm;
#[path = "../../ratelimit-runtime/src/key/mod.rs"]
mod key;
#[path = "../../ratelimit-runtime/src/limit/mod.rs"]
mod limit;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

use self::key::{Format, Key, KeyWriter, Piece, Secret};
use self::limit::{Algorithm, Limit};

static SECRET: LazyLock<Secret> = LazyLock::new(Secret::random);

/// A key as somebody may write it.
#[derive(Arbitrary, Debug)]
enum Written {
    Value(Value),
    Format(Vec<Part>),
}

#[derive(Arbitrary, Debug)]
enum Value {
    Nothing,
    Text(String),
    Bytes(Vec<u8>),
    Signed(i128),
    Unsigned(u64),
    Truth(bool),
    Letter(char),
    Address(IpAddr),
    One(Box<Value>),
    Two(Box<[Value; 2]>),
    Three(Box<[Value; 3]>),
}

/// A part of a format string.
#[derive(Arbitrary, Debug)]
enum Part {
    Text(Symbols),
    Arg(String),
}

/// A text of the bytes that have a meaning and some that have none. There are few, since the texts
/// of limits and of format strings are never freed.
#[derive(Arbitrary, Debug)]
struct Symbols([u8; 4]);

impl Symbols {
    fn text(&self) -> &'static str {
        static SEEN: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
        let letters = ["a", ":", "{", "}", "%", "(", ")", "1s", ""];
        let text: String = self.0.iter().map(|it| letters[usize::from(*it) % 9]).collect();
        let mut seen = SEEN.lock().expect("nothing panics here");
        if let Some(text) = seen.get(&*text) {
            return text;
        }
        let text: &'static str = text.leak();
        seen.insert(text);
        text
    }
}

impl Key for Value {
    fn write(&self, out: &mut KeyWriter<'_>) {
        match self {
            Self::Nothing => ().write(out),
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

impl Key for Written {
    fn write(&self, out: &mut KeyWriter<'_>) {
        match self {
            Self::Value(value) => value.write(out),
            Self::Format(parts) => {
                // As the attribute does it, but that no number of parts is too many for one array.
                for part in parts {
                    match part {
                        Part::Text(text) => Format(&[Piece::Text(text.text())]).write(out),
                        Part::Arg(arg) => Format(&[Piece::Arg(format_args!("{arg}"))]).write(out),
                    }
                }
            }
        }
    }
}

/// What a key is. Two keys of one shape are one key.
#[derive(Debug, PartialEq, Eq)]
enum Shape {
    Nothing,
    Value(Vec<u8>),
    Group(Vec<Shape>),
    /// What a format string is made of: texts, neighbouring ones as one, and groups.
    Row(Vec<Shape>),
    Text(Vec<u8>),
}

impl Shape {
    /// A plain text alone is that value, and an argument alone is a group. Colons are not plain.
    fn row(mut row: Vec<Self>, colons: bool) -> Self {
        match &mut row[..] {
            [] => Self::Value(Vec::new()),
            [Self::Text(text)] if !colons => Self::Value(std::mem::take(text)),
            [Self::Group(group)] => Self::Group(std::mem::take(group)),
            _ => Self::Row(row),
        }
    }
}

impl Value {
    fn shape(&self) -> Shape {
        let group = |parts: &[Self]| Shape::Group(parts.iter().map(Self::shape).collect());
        Shape::Value(match self {
            Self::Nothing => return Shape::Nothing,
            Self::One(part) => return Shape::Group(vec![part.shape()]),
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

impl Written {
    fn shape(&self) -> Shape {
        let parts = match self {
            Self::Value(value) => return value.shape(),
            Self::Format(parts) => parts,
        };
        let (mut row, mut colons) = (Vec::new(), false);
        for part in parts {
            match part {
                Part::Arg(arg) => {
                    row.push(Shape::Group(vec![Shape::Value(arg.as_bytes().to_vec())]));
                }
                Part::Text(text) => {
                    let text = text.text();
                    colons |= text.contains(':');
                    match row.last_mut() {
                        _ if text.is_empty() => {}
                        Some(Shape::Text(before)) => before.extend(text.as_bytes()),
                        _ => row.push(Shape::Text(text.as_bytes().to_vec())),
                    }
                }
            }
        }
        Shape::row(row, colons)
    }
}

#[derive(Arbitrary, Debug)]
struct Count {
    algorithm: u8,
    period_us: u64,
    name: Symbols,
    key: Written,
}

impl Count {
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

fn text(write: impl FnOnce(&mut KeyWriter<'_>)) -> Vec<u8> {
    let mut text = Vec::new();
    KeyWriter::append(&mut text, write);
    text
}

/// Reads algorithm, period in microseconds, name and key.
fn read(identity: &[u8]) -> (String, u64, Vec<u8>, Shape) {
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
        unit => panic!("{unit:?} is no unit"),
    };
    skip(rest, b':');
    let (name, key) = if let Some(name) = rest.strip_suffix(b"%") {
        (name, Shape::Nothing)
    } else {
        let name = until(rest, b"{");
        skip(rest, b'{');
        (name, read_key(rest.strip_suffix(b"}").expect("the end of the hash tag")))
    };
    (algorithm, count * unit, unescaped(name), key)
}

fn read_key(mut text: &[u8]) -> Shape {
    let (mut row, mut colons) = (Vec::new(), false);
    while !text.is_empty() {
        if text[0] == b'(' {
            row.push(read_part(&mut text));
        } else {
            let plain = until(&mut text, b"(");
            colons |= plain.contains(&b':');
            row.push(Shape::Text(unescaped(plain)));
        }
    }
    Shape::row(row, colons)
}

/// Reads a group, or a part of one.
fn read_part(text: &mut &[u8]) -> Shape {
    if text[0] != b'(' {
        let part = until(text, b":)");
        return if part == b"%" { Shape::Nothing } else { Shape::Value(unescaped(part)) };
    }
    let mut parts = Vec::new();
    while text[0] != b')' {
        *text = &text[1..];
        parts.push(read_part(text));
    }
    skip(text, b')');
    Shape::Group(parts)
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

fuzz_target!(|count: Count| {
    let Some(limit) = count.limit() else { return };
    let identity = text(|out| out.identity(&limit, &count.key));
    // A key that is kept for later is the same key.
    let kept = KeyWriter::written(&count.key);
    assert_eq!(text(|out| out.identity(&limit, &kept)), identity);
    let fingerprint = |key: &dyn Key| KeyWriter::fingerprint(&SECRET, key);
    assert_eq!(fingerprint(&kept), fingerprint(&count.key), "{}", identity.escape_ascii());

    let shape = count.key.shape();
    let tags = |brace| identity.iter().filter(|byte| **byte == brace).count();
    let tagged = usize::from(shape != Shape::Nothing);
    assert_eq!((tags(b'{'), tags(b'}')), (tagged, tagged), "{}", identity.escape_ascii());

    let algorithm = limit.algorithm().as_str().to_owned();
    let expected = (algorithm, limit.period_us(), limit.name().as_bytes().to_vec(), shape);
    assert_eq!(read(&identity), expected, "{}", identity.escape_ascii());
});
