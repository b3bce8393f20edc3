//! A server of the models: runs the scripts of the runtime in Lua 5.1, as Redis does, on a count that a model can clone
//! and compare. It knows the commands that the scripts of counts call, and fails at any other.

use std::cell::RefCell;
use std::collections::HashMap;
use std::iter;

use mlua::{Error, Function, Lua, MultiValue, Value, Variadic};

use crate::scripts::{Mistakes, Script};

/// The key of the count.
const KEY: &[u8] = b"count";

/// The only count of a server. It expires as those of Redis do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct StoredCount {
    value: Option<Vec<u8>>,
    /// In milliseconds of the clock of the server.
    expires: Option<u64>,
}

thread_local! {
    static RUNNER: Runner = Runner::new().expect("Lua starts");
}

const MEMORY: usize = 200_000;

/// Lua, and what the script that runs works on.
struct Runner {
    lua: Lua,
    /// So few that a search compares less than a hash reads.
    scripts: RefCell<Vec<(Script, Mistakes, Function)>>,
    /// The results of runs: a script reads nothing else, and many states of a model have equal servers.
    results: RefCell<HashMap<Run, (StoredCount, Vec<u8>)>>,
}

#[derive(PartialEq, Eq, Hash)]
struct Run {
    /// The place of the script in the list.
    script: usize,
    before: StoredCount,
    clock: u64,
    /// How often the script receives the only key.
    keys: usize,
    arguments: Vec<Vec<u8>>,
}

/// The count and the time of the running script.
struct Running {
    count: StoredCount,
    clock: u64,
}

impl StoredCount {
    /// Runs a script at `clock`, in microseconds. Returns its reply, a string or a list of one.
    pub(crate) fn run(
        &mut self,
        script: Script,
        mistakes: Mistakes,
        clock: u64,
        keys: usize,
        arguments: Vec<Vec<u8>>,
    ) -> Vec<u8> {
        let before = std::mem::take(self);
        RUNNER.with(|runner| {
            let (script, function) = runner.compiled(script, mistakes).expect("a script");
            let run = Run { script, before, clock, keys, arguments };
            let reply;
            (*self, reply) = runner.run(&function, run);
            reply
        })
    }
}

impl Runner {
    fn new() -> mlua::Result<Self> {
        let lua = Lua::new();
        let packing = lua.create_table()?;
        packing.set("pack", lua.create_function(pack)?)?;
        packing.set("unpack", lua.create_function(unpack)?)?;
        lua.globals().set("struct", packing)?;
        let redis = lua.create_table_from([("call", lua.create_function(call)?)])?;
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

    fn run(&self, function: &Function, run: Run) -> (StoredCount, Vec<u8>) {
        let mut results = self.results.borrow_mut();
        if let Some(result) = results.get(&run) {
            return result.clone();
        }
        self.lua.set_app_data(Running { count: run.before.clone(), clock: run.clock });
        let reply = self.reply(function, &run).expect("the model knows what the script uses");
        let Running { count, .. } = self.lua.remove_app_data().expect("set above");
        if results.len() == MEMORY {
            results.clear();
        }
        results.insert(run, (count.clone(), reply.clone()));
        (count, reply)
    }

    fn reply(&self, function: &Function, run: &Run) -> mlua::Result<Vec<u8>> {
        let string = |text: &[u8]| self.lua.create_string(text);
        let keys: mlua::Result<Vec<_>> = iter::repeat_n(KEY, run.keys).map(string).collect();
        let arguments: mlua::Result<Vec<_>> = run.arguments.iter().map(|it| string(it)).collect();
        self.lua.globals().set("KEYS", keys?)?;
        self.lua.globals().set("ARGV", arguments?)?;
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
fn call(lua: &Lua, arguments: Variadic<mlua::String>) -> mlua::Result<Value> {
    let texts: Vec<_> = arguments.iter().map(mlua::String::as_bytes).collect();
    let texts: Vec<&[u8]> = texts.iter().map(|text| &**text).collect();
    let mut running = lua.app_data_mut::<Running>().ok_or_else(|| Error::runtime("not running"))?;
    let Running { count, clock } = &mut *running;
    let now = *clock / 1_000;
    if count.expires.is_some_and(|at| at <= now) {
        *count = StoredCount::default();
    }
    let number = |text: &[u8]| {
        let text = std::str::from_utf8(text).map_err(Error::external)?;
        text.parse::<f64>().map(|number| number as i64).map_err(Error::external)
    };
    let string = |bytes: &[u8]| lua.create_string(bytes).map(Value::String);
    match &texts[..] {
        [b"TIME"] => {
            let time = [(*clock / 1_000_000).to_string(), (*clock % 1_000_000).to_string()];
            lua.create_sequence_from(time).map(Value::Table)
        }
        [b"GET", KEY] => count.value.as_ref().map_or(Ok(Value::Boolean(false)), |it| string(it)),
        [b"GETRANGE", KEY, from, upto] => {
            let value = count.value.as_deref().unwrap_or_default();
            let (length, from, upto) = (value.len() as i64, number(from)?, number(upto)?);
            let at = |place: i64| if place < 0 { (length + place).max(0) } else { place };
            let part = at(from) as usize..(at(upto) + 1).min(length) as usize;
            string(value.get(part).unwrap_or_default())
        }
        [b"SETRANGE", KEY, from, text] => {
            let (from, value) = (number(from)? as usize, count.value.get_or_insert_default());
            let length = value.len().max(from + text.len());
            value.resize(length, 0);
            value[from..from + text.len()].copy_from_slice(text);
            Ok(Value::Integer(length as i64))
        }
        [b"SET", KEY, value, rest @ ..] => {
            count.expires = match rest {
                [b"KEEPTTL"] => count.expires,
                [b"PX", ttl] => Some(now + number(ttl)? as u64),
                _ => return Err(Error::runtime("unknown SET")),
            };
            count.value = Some(value.to_vec());
            Ok(Value::Boolean(true))
        }
        [b"DEL" | b"UNLINK", KEY] => {
            let is_removed = std::mem::take(count).value.is_some();
            Ok(Value::Integer(is_removed.into()))
        }
        [b"PTTL", KEY] => Ok(Value::Integer(match (&count.value, count.expires) {
            (None, _) => -2,
            (Some(_), None) => -1,
            (Some(_), Some(at)) => (at - now) as i64,
        })),
        // A time that has passed removes the key with the next command.
        [b"PEXPIRE", KEY, ttl] => {
            let expires = now.saturating_add_signed(number(ttl)?);
            count.expires = count.value.as_ref().map(|_| expires);
            Ok(Value::Integer(count.value.is_some().into()))
        }
        _ => Err(Error::runtime(format!("no {:?} in models", arguments.first()))),
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
