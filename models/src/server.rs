//! A server of the models: runs the scripts of the runtime in Lua 5.1, as Redis does, on keys that a model can clone
//! and compare. It knows the commands that the scripts of counts call, and fails at any other.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use mlua::{Error, Function, Lua, MultiValue, Table, Value};

/// The keys of a server. They expire as those of Redis do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Keys(BTreeMap<Vec<u8>, Entry>);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Entry {
    value: Vec<u8>,
    /// In milliseconds of the clock of the server.
    expires: Option<u64>,
}

/// What a script returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A string.
    Text(Vec<u8>),
    /// A list of strings.
    List(Vec<Vec<u8>>),
    /// An error with this message.
    Error(String),
}

thread_local! {
    static RUNNER: Runner = Runner::new().expect("Lua starts");
}

/// How many runs are remembered.
const MEMORY: usize = 200_000;

/// Lua, and what the script that runs works on.
struct Runner {
    lua: Lua,
    /// So few that a search compares less than a hash reads.
    scripts: RefCell<Vec<(String, Function)>>,
    /// The results of runs: a script reads nothing else, and many states of a model have equal servers.
    results: RefCell<HashMap<Run, (Keys, Reply)>>,
}

/// A run of a script.
#[derive(PartialEq, Eq, Hash)]
struct Run {
    /// The place of the script in the list.
    script: usize,
    before: Keys,
    clock: u64,
    keys: Vec<Vec<u8>>,
    arguments: Vec<Vec<u8>>,
}

/// The keys and the time of the running script.
struct Running {
    keys: Keys,
    clock: u64,
}

impl Keys {
    /// Runs a script at `clock`, in microseconds. A script that fails keeps what it has written, as on a server.
    ///
    /// # Panics
    ///
    /// Panics if Lua cannot compile the script.
    pub fn run(
        &mut self,
        script: &str,
        clock: u64,
        keys: &[&[u8]],
        arguments: &[Vec<u8>],
    ) -> Reply {
        let before = std::mem::take(self);
        let reply;
        (*self, reply) = RUNNER.with(|runner| runner.run(script, before, clock, keys, arguments));
        reply
    }

    /// Returns the value of a key at `clock`.
    #[must_use]
    pub fn get(&self, key: &[u8], clock: u64) -> Option<&[u8]> {
        let entry = self.0.get(key).filter(|entry| entry.is_alive(clock))?;
        Some(&entry.value)
    }

    /// Removes the keys that have expired. Two servers then compare equal if they reply alike.
    pub fn expire(&mut self, clock: u64) {
        self.0.retain(|_, entry| entry.is_alive(clock));
    }

    /// Removes all keys.
    pub fn flush(&mut self) {
        self.0.clear();
    }
}

impl Entry {
    fn is_alive(&self, clock: u64) -> bool {
        self.expires.is_none_or(|at| at > clock / 1_000)
    }
}

impl Runner {
    fn new() -> mlua::Result<Self> {
        let lua = Lua::new();
        let packing = lua.create_table()?;
        packing.set("pack", lua.create_function(pack)?)?;
        packing.set("unpack", lua.create_function(unpack)?)?;
        lua.globals().set("struct", packing)?;
        let redis = lua.create_table()?;
        redis.set("call", lua.create_function(call)?)?;
        // All values are strings, and all keys are on this server, so no command fails.
        redis.set("pcall", lua.create_function(call)?)?;
        lua.globals().set("redis", redis)?;
        Ok(Self { lua, scripts: RefCell::default(), results: RefCell::default() })
    }

    fn run(
        &self,
        script: &str,
        before: Keys,
        clock: u64,
        keys: &[&[u8]],
        arguments: &[Vec<u8>],
    ) -> (Keys, Reply) {
        let (script, function) = self.compiled(script).expect("a script");
        let keys = keys.iter().map(|key| key.to_vec()).collect();
        let run = Run { script, before, clock, keys, arguments: arguments.to_vec() };
        let mut results = self.results.borrow_mut();
        if let Some(result) = results.get(&run) {
            return result.clone();
        }
        self.lua.set_app_data(Running { keys: run.before.clone(), clock });
        let reply = self.reply(&function, &run).expect("the model knows what the script uses");
        let Running { keys, .. } = self.lua.remove_app_data().expect("set above");
        if results.len() == MEMORY {
            results.clear();
        }
        results.insert(run, (keys.clone(), reply.clone()));
        (keys, reply)
    }

    /// Returns a script and its place in the list.
    fn compiled(&self, text: &str) -> mlua::Result<(usize, Function)> {
        let mut scripts = self.scripts.borrow_mut();
        let known = scripts.iter().position(|(other, _)| other == text);
        let place = known.unwrap_or(scripts.len());
        if known.is_none() {
            scripts.push((text.to_owned(), self.lua.load(text).into_function()?));
        }
        Ok((place, scripts[place].1.clone()))
    }

    fn reply(&self, function: &Function, run: &Run) -> mlua::Result<Reply> {
        let globals = self.lua.globals();
        let strings = |texts: &[Vec<u8>]| -> mlua::Result<Table> {
            let table = self.lua.create_table()?;
            for text in texts {
                table.push(self.lua.create_string(text)?)?;
            }
            Ok(table)
        };
        globals.set("KEYS", strings(&run.keys)?)?;
        globals.set("ARGV", strings(&run.arguments)?)?;
        match function.call::<Value>(())? {
            Value::String(text) => Ok(Reply::Text(text.as_bytes().to_vec())),
            Value::Table(table) => match table.get::<Option<mlua::String>>("err")? {
                Some(error) => Ok(Reply::Error(error.to_string_lossy())),
                None => {
                    let texts = table.sequence_values::<mlua::String>();
                    let texts: mlua::Result<Vec<_>> =
                        texts.map(|text| Ok(text?.as_bytes().to_vec())).collect();
                    Ok(Reply::List(texts?))
                }
            },
            other => Err(Error::runtime(format!("a script returned {other:?}"))),
        }
    }
}

/// The commands that the scripts of counts call.
fn call(lua: &Lua, arguments: MultiValue) -> mlua::Result<Value> {
    let mut texts = Vec::with_capacity(arguments.len());
    for argument in arguments {
        let text = lua.coerce_string(argument)?.ok_or_else(|| Error::runtime("no string"))?;
        texts.push(text.as_bytes().to_vec());
    }
    let texts: Vec<&[u8]> = texts.iter().map(|text| &text[..]).collect();
    let mut running = lua.app_data_mut::<Running>().ok_or_else(|| Error::runtime("not running"))?;
    let Running { keys, clock } = &mut *running;
    let clock = *clock;
    keys.expire(clock);
    let entries = &mut keys.0;
    let number = |text: &[u8]| {
        let text = std::str::from_utf8(text).map_err(Error::external)?;
        text.parse::<f64>().map(|number| number as i64).map_err(Error::external)
    };
    let ttl_end = |ttl: i64| clock / 1_000 + u64::try_from(ttl).unwrap_or(0);
    match &texts[..] {
        [b"TIME"] => {
            let time = [(clock / 1_000_000).to_string(), (clock % 1_000_000).to_string()];
            Ok(Value::Table(lua.create_sequence_from(time)?))
        }
        [b"GET", key] => match entries.get(*key) {
            Some(entry) => Ok(Value::String(lua.create_string(&entry.value)?)),
            None => Ok(Value::Boolean(false)),
        },
        [b"GETRANGE", key, from, upto] => {
            let value = entries.get(*key).map_or(&[][..], |entry| &entry.value);
            let (length, from, upto) = (value.len() as i64, number(from)?, number(upto)?);
            let at = |place: i64| if place < 0 { (length + place).max(0) } else { place };
            let (from, upto) = (at(from), at(upto).min(length - 1));
            let part = if from > upto { &[][..] } else { &value[from as usize..=upto as usize] };
            Ok(Value::String(lua.create_string(part)?))
        }
        [b"SETRANGE", key, from, text] => {
            let (from, entry) = (number(from)? as usize, entries.entry(key.to_vec()).or_default());
            let length = entry.value.len().max(from + text.len());
            entry.value.resize(length, 0);
            entry.value[from..from + text.len()].copy_from_slice(text);
            Ok(Value::Integer(length as i64))
        }
        [b"SET", key, value, rest @ ..] => {
            let kept = entries.get(*key).and_then(|entry| entry.expires);
            let expires = match rest {
                [] => None,
                [b"KEEPTTL"] => kept,
                [b"PX", ttl] => Some(ttl_end(number(ttl)?)),
                _ => return Err(Error::runtime("unknown SET")),
            };
            entries.insert(key.to_vec(), Entry { value: value.to_vec(), expires });
            Ok(Value::Boolean(true))
        }
        [b"DEL" | b"UNLINK", removed @ ..] => {
            let count = removed.iter().filter(|key| entries.remove(**key).is_some()).count();
            Ok(Value::Integer(count as i64))
        }
        [b"PTTL", key] => Ok(Value::Integer(match entries.get(*key) {
            None => -2,
            Some(Entry { expires: None, .. }) => -1,
            Some(Entry { expires: Some(at), .. }) => (at - clock / 1_000) as i64,
        })),
        [b"PEXPIRE", key, ttl] => match (entries.get_mut(*key), number(ttl)?) {
            (None, _) => Ok(Value::Integer(0)),
            (Some(_), ttl) if ttl <= 0 => {
                entries.remove(*key);
                Ok(Value::Integer(1))
            }
            (Some(entry), ttl) => {
                entry.expires = Some(ttl_end(ttl));
                Ok(Value::Integer(1))
            }
        },
        [command, ..] => {
            Err(Error::runtime(format!("no {} in models", String::from_utf8_lossy(command))))
        }
        [] => Err(Error::runtime("no command")),
    }
}

/// A part of a format of Redis' `struct`: big-endian integers, and strings that end with a zero byte.
enum Part {
    Unsigned(usize),
    Signed(usize),
    ZeroEnded,
}

fn parts(format: &[u8]) -> mlua::Result<Vec<Part>> {
    let mut parts = Vec::new();
    let mut rest = format.strip_prefix(b">").ok_or_else(|| Error::runtime("not big-endian"))?;
    while let Some((kind, after)) = rest.split_first() {
        let digits = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (width, after) = after.split_at(digits);
        let width = width.iter().fold(0, |sum, digit| sum * 10 + usize::from(digit - b'0'));
        parts.push(match kind {
            b'I' => Part::Unsigned(width),
            b'i' => Part::Signed(width),
            b's' => Part::ZeroEnded,
            other => return Err(Error::runtime(format!("no format {}", char::from(*other)))),
        });
        rest = after;
    }
    Ok(parts)
}

fn pack(lua: &Lua, (format, values): (mlua::String, MultiValue)) -> mlua::Result<mlua::String> {
    let (mut out, mut values) = (Vec::new(), values.into_iter());
    for part in parts(&format.as_bytes())? {
        let value = values.next().unwrap_or(Value::Nil);
        match part {
            Part::Unsigned(width) | Part::Signed(width) => {
                let number = lua.coerce_number(value)?;
                let number = number.ok_or_else(|| Error::runtime("no number to pack"))?;
                // Redis converts by way of a signed integer.
                out.extend(&(number as i64).to_be_bytes()[8 - width..]);
            }
            Part::ZeroEnded => {
                let text = lua.coerce_string(value)?.ok_or_else(|| Error::runtime("no text"))?;
                out.extend(&*text.as_bytes());
                out.push(0);
            }
        }
    }
    lua.create_string(out)
}

fn unpack(
    lua: &Lua,
    (format, text, from): (mlua::String, mlua::String, Option<usize>),
) -> mlua::Result<MultiValue> {
    let (text, mut at, mut values) = (text.as_bytes(), from.unwrap_or(1) - 1, Vec::new());
    for part in parts(&format.as_bytes())? {
        match part {
            Part::Unsigned(width) | Part::Signed(width) => {
                let bytes = text.get(at..at + width);
                let bytes = bytes.ok_or_else(|| Error::runtime("data string too short"))?;
                let number = bytes.iter().fold(0_i64, |sum, byte| sum << 8 | i64::from(*byte));
                let unused = 64 - 8 * width as u32;
                let is_signed = matches!(part, Part::Signed(_));
                let number = if is_signed { number << unused >> unused } else { number };
                values.push(Value::Number(number as f64));
                at += width;
            }
            Part::ZeroEnded => {
                let rest = text.get(at..).unwrap_or_default();
                let length = rest.iter().position(|byte| *byte == 0);
                let length = length.ok_or_else(|| Error::runtime("unfinished string"))?;
                values.push(Value::String(lua.create_string(&rest[..length])?));
                at += length + 1;
            }
        }
    }
    values.push(Value::Number((at + 1) as f64));
    Ok(values.into_iter().collect())
}
