//! Makes many keys in Redis in little time: what decisions of one key left behind is copied.

use redis::Connection;
use tokio::runtime::Runtime;

use crate::contender::Contender;
use crate::machine;

/// KEYS[1] a key; ARGV the number in its name, and the first and the last of those that replace it
const COPY: &str = "\
for index = ARGV[2], ARGV[3] do
  redis.call('COPY', KEYS[1], (string.gsub(KEYS[1], ARGV[1], index .. '', 1)))
end";

/// The key that is copied: not a number that stands elsewhere in a name.
const TEMPLATE: u32 = 987_654_321;

/// More than this in one server take too long to make.
const MOST: usize = 20_000_000;

/// Makes so many keys of each; says of which there are.
pub(crate) fn fill(runtime: &Runtime, all: &[Contender], count: u32) -> Vec<bool> {
    if !machine::has_room(count, 800) {
        return vec![false; all.len()];
    }
    let there: Vec<bool> = std::thread::scope(|scope| {
        let threads = all.iter().map(|who| {
            let mut connection = who.server.connection();
            redis::cmd("FLUSHALL").exec(&mut connection).expect("FLUSHALL");
            // Known for some time: what it takes for a key to live longer is set rarely by now.
            (0..100).for_each(|_| who.decide(runtime, TEMPLATE));
            scope.spawn(move || copy(&mut connection, count))
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().expect("copies")).collect()
    });
    // What is decided now was there before, or the keys are not the right ones.
    for (who, _) in all.iter().zip(&there).filter(|(_, there)| **there) {
        let size =
            || -> u64 { redis::cmd("DBSIZE").query(&mut who.server.connection()).expect("DBSIZE") };
        let before = size();
        who.decide(runtime, count - 1);
        assert_eq!(before, size(), "a new key of {}", who.column.name);
    }
    there
}

/// Some keep more than one key in Redis for each of theirs; too many are not made.
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
