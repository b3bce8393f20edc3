//! A server of the models: runs the scripts of the runtime in Lua 5.1, as Redis does, on keys that a model can clone
//! and compare. It knows the commands that the scripts of counts call, and fails at any other.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::iter;

use mlua::{Error, Function, Lua, MultiValue, Table, Value};

use crate::scripts::{Mistakes, Script};

/// The only key of a model.
const KEY: &[u8] = b"count";

/// The keys of a server. They expire as those of Redis do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Keys(BTreeMap<Vec<u8>, Entry>);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Entry {
    value: Vec<u8>,
    /// In milliseconds of the clock of the server.
    expires: Option<u64>,
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
    scripts: RefCell<Vec<(Script, Mistakes, Function)>>,
    /// The results of runs: a script reads nothing else, and many states of a model have equal servers.
    results: RefCell<HashMap<Run, (Keys, Vec<u8>)>>,
}

/// A run of a script.
#[derive(PartialEq, Eq, Hash)]
struct Run {
    /// The place of the script in the list.
    script: usize,
    before: Keys,
    clock: u64,
    /// How often the script receives the only key.
    keys: usize,
    arguments: Vec<Vec<u8>>,
}

/// The keys and the time of the running script.
struct Running {
    keys: Keys,
    clock: u64,
}

impl Keys {
    /// Runs a script at `clock`, in microseconds. Returns its reply, a string or a list of one.
    ///
    /// # Panics
    ///
    /// Panics if the script fails.
    pub(crate) fn run(
        &mut self,
        script: Script,
        mistakes: Mistakes,
        clock: u64,
        keys: usize,
        arguments: Vec<Vec<u8>>,
    ) -> Vec<u8> {
        let before = std::mem::take(self);
        let reply;
        (*self, reply) = RUNNER.with(|runner| {
            let (script, function) = runner.compiled(script, mistakes).expect("a script");
            runner.run(&function, Run { script, before, clock, keys, arguments })
        });
        reply
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

    /// Returns a script and its place in the list.
    fn compiled(&self, script: Script, mistakes: Mistakes) -> mlua::Result<(usize, Function)> {
        let mut scripts = self.scripts.borrow_mut();
        let is_same = |known: &(Script, Mistakes, _)| (known.0, known.1) == (script, mistakes);
        let known = scripts.iter().position(is_same);
        let place = known.unwrap_or(scripts.len());
        if known.is_none() {
            let function = self.lua.load(script.text(mistakes)).into_function()?;
            scripts.push((script, mistakes, function));
        }
        Ok((place, scripts[place].2.clone()))
    }

    fn run(&self, function: &Function, run: Run) -> (Keys, Vec<u8>) {
        let mut results = self.results.borrow_mut();
        if let Some(result) = results.get(&run) {
            return result.clone();
        }
        self.lua.set_app_data(Running { keys: run.before.clone(), clock: run.clock });
        let reply = self.reply(function, &run).expect("the model knows what the script uses");
        let Running { keys, .. } = self.lua.remove_app_data().expect("set above");
        if results.len() == MEMORY {
            results.clear();
        }
        results.insert(run, (keys.clone(), reply.clone()));
        (keys, reply)
    }

    fn reply(&self, function: &Function, run: &Run) -> mlua::Result<Vec<u8>> {
        let strings = |texts: &mut dyn Iterator<Item = &[u8]>| -> mlua::Result<Table> {
            let texts: mlua::Result<Vec<_>> =
                texts.map(|text| self.lua.create_string(text)).collect();
            self.lua.create_sequence_from(texts?)
        };
        let globals = self.lua.globals();
        globals.set("KEYS", strings(&mut iter::repeat_n(KEY, run.keys))?)?;
        globals.set("ARGV", strings(&mut run.arguments.iter().map(|it| &it[..]))?)?;
        let reply = match function.call::<Value>(())? {
            Value::Table(list) => match list.get::<Option<mlua::String>>("err")? {
                Some(error) => return Err(Error::runtime(error.to_string_lossy())),
                None if list.raw_len() == 1 => list.get(1)?,
                None => return Err(Error::runtime("a script returned several replies")),
            },
            other => other,
        };
        match reply {
            Value::String(text) => Ok(text.as_bytes().to_vec()),
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

/// Returns the parts of a format of Redis' `struct`, each with its width: big-endian integers `I` and `i`, and strings
/// `s` that end with a zero byte.
fn parts(format: &[u8]) -> mlua::Result<Vec<(u8, usize)>> {
    let mut parts: Vec<(u8, usize)> = Vec::new();
    for byte in format.strip_prefix(b">").ok_or_else(|| Error::runtime("not big-endian"))? {
        match (byte, parts.last_mut()) {
            (b'0'..=b'9', Some((_, width))) => *width = *width * 10 + usize::from(byte - b'0'),
            (b'I' | b'i' | b's', _) => parts.push((*byte, 0)),
            _ => return Err(Error::runtime(format!("no format {}", char::from(*byte)))),
        }
    }
    Ok(parts)
}

fn pack(lua: &Lua, (format, values): (mlua::String, MultiValue)) -> mlua::Result<mlua::String> {
    let (mut out, mut values) = (Vec::new(), values.into_iter());
    for (kind, width) in parts(&format.as_bytes())? {
        let value = values.next().unwrap_or(Value::Nil);
        if kind == b's' {
            let text = lua.coerce_string(value)?.ok_or_else(|| Error::runtime("no text"))?;
            out.extend(&*text.as_bytes());
            out.push(0);
        } else {
            let number = lua.coerce_number(value)?;
            let number = number.ok_or_else(|| Error::runtime("no number to pack"))?;
            // Redis converts by way of a signed integer.
            out.extend(&(number as i64).to_be_bytes()[8 - width..]);
        }
    }
    lua.create_string(out)
}

fn unpack(
    lua: &Lua,
    (format, text, from): (mlua::String, mlua::String, Option<usize>),
) -> mlua::Result<MultiValue> {
    let (text, mut at, mut values) = (text.as_bytes(), from.unwrap_or(1) - 1, Vec::new());
    for (kind, width) in parts(&format.as_bytes())? {
        let rest = text.get(at..).unwrap_or_default();
        if kind == b's' {
            let length = rest.iter().position(|byte| *byte == 0);
            let length = length.ok_or_else(|| Error::runtime("unfinished string"))?;
            values.push(Value::String(lua.create_string(&rest[..length])?));
            at += length + 1;
        } else {
            let bytes = rest.get(..width).ok_or_else(|| Error::runtime("data string too short"))?;
            let number = bytes.iter().fold(0_i64, |sum, byte| sum << 8 | i64::from(*byte));
            let unused = 64 - 8 * width as u32;
            let number = if kind == b'i' { number << unused >> unused } else { number };
            values.push(Value::Number(number as f64));
            at += width;
        }
    }
    values.push(Value::Number((at + 1) as f64));
    Ok(values.into_iter().collect())
}
