//! Creates many keys in Redis in a short time: copies the keys that decisions about one key have created.

use redis::Connection;
use tokio::runtime::Runtime;

use crate::contender::Contender;
use crate::machine;

/// KEYS[1] is a key. ARGV is the number in its name, and the first and the last of the numbers that replace it.
const COPY: &str = "\
for index = ARGV[2], ARGV[3] do
  redis.call('COPY', KEYS[1], (string.gsub(KEYS[1], ARGV[1], index .. '', 1)))
end";

/// The number of the key that is copied. It occurs nowhere else in a name.
const TEMPLATE: u32 = 987_654_321;

/// The most keys of one server: more would take too long to copy.
const MOST: usize = 20_000_000;

/// Creates `count` keys of each limiter. Returns which limiters have them.
pub(crate) fn fill(runtime: &Runtime, all: &[Contender], count: u32) -> Vec<bool> {
    if !machine::has_room(count, 800) {
        return vec![false; all.len()];
    }
    let there: Vec<bool> = std::thread::scope(|scope| {
        let threads = all.iter().map(|who| {
            let mut connection = who.server.connection();
            redis::cmd("FLUSHALL").exec(&mut connection).expect("FLUSHALL");
            // Decides many calls, so that the key has a long TTL and the limiter rarely sets it again.
            (0..100).for_each(|_| who.decide(runtime, TEMPLATE));
            scope.spawn(move || copy(&mut connection, count))
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().expect("copies")).collect()
    });
    // Checks that the limiter finds the copied keys: a decision about one of them must not create another key.
    for (who, _) in all.iter().zip(&there).filter(|(_, there)| **there) {
        let size =
            || -> u64 { redis::cmd("DBSIZE").query(&mut who.server.connection()).expect("DBSIZE") };
        let before = size();
        who.decide(runtime, count - 1);
        assert_eq!(before, size(), "a new key of {}", who.column.name);
    }
    there
}

/// Copies the keys. Returns `false` if the limiter keeps so many Redis keys per key that the copies would be too
/// many.
fn copy(connection: &mut Connection, count: u32) -> bool {
    const STEP: u32 = 10_000;
    let keys: Vec<String> =
        redis::cmd("KEYS").arg(format!("*{TEMPLATE}*")).query(connection).expect("KEYS");
    if keys.len() * count as usize > MOST {
        return false;
    }
    for key in keys {
        for first in (0..count).step_by(STEP as usize) {
            let last = (first + STEP).min(count) - 1;
            let mut script = redis::cmd("EVAL");
            script.arg(COPY).arg(1).arg(&key).arg(TEMPLATE).arg(first).arg(last);
            script.exec(connection).expect("copies");
        }
    }
    true
}
