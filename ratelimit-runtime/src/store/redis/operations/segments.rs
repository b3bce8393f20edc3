//! Resets a sliding log: removes the state first, then the segments of a long log. `lua/segments.lua` creates the
//! segments.

use redis::Cmd;
use tokio::time::Instant;

use super::script_call::ScriptCall;
use crate::reply::StoreError;
use crate::store::redis::Servers;
use crate::store::redis::scripts::script;

/// The number of segments that one command removes, because Redis does nothing else while it runs a command.
const SEGMENTS_PER_COMMAND: usize = 16;

impl Servers {
    /// Removes a log, and returns whether it was there. The count starts anew once its state is removed. Segments that
    /// are left at the deadline, or are on two nodes because their hash slot moves, expire by their TTL.
    pub(crate) async fn reset_log(&self, key: &[u8], by: Instant) -> Result<bool, StoreError> {
        let call = ScriptCall {
            script: &script::RESET,
            keys: vec![key],
            arguments: Vec::new(),
            is_atomic: true,
        };
        let reply = self.run(&call, by).await?;
        let Some((removed, reply)) = reply.split_first() else { return Ok(false) };
        let was_there = *removed > 0;
        let Some((first, count)) = numbers(reply) else { return Ok(was_there) };
        let end = first + count;
        for from in (first..end).step_by(SEGMENTS_PER_COMMAND) {
            let mut unlink = Cmd::new();
            unlink.arg("UNLINK");
            for number in from..end.min(from + SEGMENTS_PER_COMMAND as u64) {
                unlink.arg(segment(key, number));
            }
            if self.send(&unlink, key, false, by).await.is_err() {
                break;
            }
        }
        Ok(was_there)
    }
}

/// Reads the number of the first segment and the count of segments; `None` if there are none.
fn numbers(reply: &[u8]) -> Option<(u64, u64)> {
    let (first, count) = reply.split_at_checked(6)?;
    let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    Some((number(first), number(count)))
}

/// Returns the key of a segment. It is in the hash slot of the log and has the key of the log as a prefix.
fn segment(key: &[u8], number: u64) -> Vec<u8> {
    let mut name = key.to_vec();
    // A count without a key has no hash tag: its name is the hash tag of its segments.
    if !key.contains(&b'{') {
        name.push(b'{');
        name.extend_from_slice(key);
        name.push(b'}');
    }
    name.push(b':');
    name.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::network::slot::slot;

    #[test]
    fn a_segment_is_in_the_slot_of_its_log() {
        for (key, name) in
            [("r:a{b}", "r:a{b}:7"), ("r:a%", "r:a%{r:a%}:7"), ("r:a{(}", "r:a{(}:7")]
        {
            let segment = segment(key.as_bytes(), 7);
            assert_eq!(segment, name.as_bytes());
            assert_eq!(slot(&segment), slot(key.as_bytes()));
        }
    }
}
