//! What the user may do: each command is tried. Redis checks the rights before all else, so a reply with another error
//! shows that the command is allowed.

use ratelimit_runtime::AnnouncedProcess;
use redis::aio::MultiplexedConnection;

use super::Diagnosis;
use crate::Context;
use crate::connection::{Node, Parts};

/// The words of all algorithms: the keys of each begin with the prefix and its word.
const ALGORITHMS: [&str; 6] =
    ["fixed", "sliding", "sliding_counter", "token_bucket", "leaky_bucket", "in_flight"];

/// The hash of no script.
const NO_SCRIPT: &str = "0000000000000000000000000000000000000000";

/// A right, as `ACL SETUSER` names it, and a command that needs it.
type Trial<'a> = (&'static str, Vec<&'a str>);

pub(super) async fn check(
    diagnosis: &mut Diagnosis,
    node: &mut Node,
    context: &Context,
    parts: &Parts<'_>,
    fleet: Option<&Vec<AnnouncedProcess>>,
) {
    let (address, connection) = (&node.address, &mut node.connection);
    let user = redis::cmd("ACL").arg("WHOAMI").query_async::<String>(connection).await;
    let user = user.unwrap_or_else(|_| parts.user().to_owned());
    let prefix = &context.prefix;
    let probe = &*format!("{prefix}:probe:doctor");
    let rules = &*format!("{prefix}:{{rules}}");
    let [processes, process, reports] =
        ["processes", "process:doctor", "report"].map(|end| format!("{rules}:{end}"));
    let (processes, process, reports) = (&*processes, &*process, &*reports);

    let mut count = vec![
        ("+set", vec!["SET", probe, "doctor", "PX", "10000"]),
        ("+get", vec!["GET", probe]),
        ("+mget", vec!["MGET", probe]),
        ("+getrange", vec!["GETRANGE", probe, "0", "0"]),
        ("+setrange", vec!["SETRANGE", probe, "0", "d"]),
        ("+pexpire", vec!["PEXPIRE", probe, "10000"]),
        ("+eval", vec!["EVAL", "return 1", "1", probe]),
        ("+evalsha", vec!["EVALSHA", NO_SCRIPT, "1", probe]),
        ("+time", vec!["TIME"]),
    ];
    match parts.topology {
        "cluster" => count.push(("+asking", vec!["ASKING"])),
        "sentinel" => count.push(("+role", vec!["ROLE"])),
        _ => {}
    }
    let mut lacking = denied(connection, &count).await;
    let can_set = !lacking.contains(&"+set");
    // None of these writes: the probe is a text, no element has the score of the range, and no key is made.
    let announce = [
        ("+eval_ro", vec!["EVAL_RO", "return 1", "1", rules]),
        ("+hget", vec!["HGET", rules, "version"]),
        ("+hstrlen", vec!["HSTRLEN", rules, "rules"]),
        ("+zadd", vec!["ZADD", processes, "XX", "0", "doctor"]),
        ("+zremrangebyscore", vec!["ZREMRANGEBYSCORE", processes, "-inf", "-inf"]),
        ("+zrange", vec!["ZRANGE", processes, "0", "0"]),
        ("~PREFIX:{rules}:process*", vec!["PEXPIRE", process, "1"]),
        ("~PREFIX:{rules}:report*", vec!["PEXPIRE", reports, "1"]),
    ];
    let operate = [
        ("+hset", vec!["HSET", probe, "a", "b"]),
        ("+lpush", vec!["LPUSH", probe, "a"]),
        ("+ltrim", vec!["LTRIM", probe, "0", "0"]),
        ("+lrange", vec!["LRANGE", probe, "0", "0"]),
        ("+pttl", vec!["PTTL", probe]),
        ("+scan", vec!["SCAN", "0", "COUNT", "1"]),
        ("~PREFIX:{rules}", vec!["EVAL", "return 1", "1", rules]),
    ];
    let announce = denied(connection, &announce).await;
    // Without the probe, these would make keys without a TTL.
    let operate = if can_set { denied(connection, &operate).await } else { Vec::new() };
    lacking.extend(
        denied(connection, &[("+del", vec!["DEL", probe]), ("+unlink", vec!["UNLINK", probe])])
            .await,
    );
    let (mut closed, mut needed) = (Vec::new(), false);
    for algorithm in ALGORITHMS {
        let key = format!("{prefix}:{algorithm}:1s:doctor%");
        if !denied(connection, &[("", vec!["PEXPIRE", &key, "1"])]).await.is_empty() {
            closed.push(format!("~{prefix}:{algorithm}:*"));
            let limits = fleet.into_iter().flatten().flat_map(|process| &process.limits);
            needed |= limits.into_iter().any(|it| it.limit.algorithm().as_str() == algorithm);
        }
    }
    needed |= closed.len() == ALGORITHMS.len();

    let named = |rights: &[&str]| rights.join(" ").replace("PREFIX", prefix);
    let grant =
        |rights: &str| format!("ACL SETUSER {user} {rights}; docs/redis.md lists all rights");
    if !lacking.is_empty() {
        let lacking = named(&lacking);
        return diagnosis.fail(
            "rights",
            format!("{address}: the user `{user}` may not decide calls, and lacks {lacking}"),
            grant(&lacking),
        );
    }
    let closed = closed.join(" ");
    if needed {
        return diagnosis.fail(
            "rights",
            format!("{address}: the user `{user}` may not write the counts of all limits, and lacks {closed}"),
            grant(&closed),
        );
    }
    let uses_rules = context.follows_rules || fleet.is_some_and(|fleet| !fleet.is_empty());
    // Redis 6.2 does not know the command.
    if uses_rules && !announce.is_empty() {
        let announce = named(&announce);
        return diagnosis.warn(
            "rights",
            format!("{address}: the user `{user}` may decide calls. It may not follow rules in Redis, and lacks {announce}"),
            grant(&announce),
        );
    }
    let mut seen = format!("{address}: the user `{user}` may decide calls");
    for (may, lacking) in [("follow rules", named(&announce)), ("change rules", named(&operate))] {
        match &*lacking {
            "" => seen.push_str(&format!(", {may}")),
            lacking => seen.push_str(&format!(", not {may} ({lacking})")),
        }
    }
    if !closed.is_empty() {
        seen.push_str(&format!(", no calls on the keys {closed}"));
    }
    diagnosis.ok("rights", seen);
}

/// Returns the rights that the user lacks.
async fn denied(connection: &mut MultiplexedConnection, trials: &[Trial<'_>]) -> Vec<&'static str> {
    let mut denied = Vec::new();
    for (right, words) in trials {
        let mut command = redis::cmd(words[0]);
        let reply = command.arg(&words[1..]).exec_async(connection).await;
        if reply.is_err_and(|error| error.code() == Some("NOPERM")) {
            denied.push(*right);
        }
    }
    denied
}
