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

/// What the user may not do, each as rights that `ACL SETUSER` names.
struct Lacking {
    user: String,
    to_decide: String,
    to_follow_rules: String,
    to_change_rules: String,
    /// The algorithms whose keys the user may not write.
    closed: Vec<&'static str>,
}

pub(super) async fn check(
    diagnosis: &mut Diagnosis,
    node: &mut Node,
    context: &Context,
    parts: &Parts<'_>,
    fleet: Option<&Vec<AnnouncedProcess>>,
) {
    let prefix = &context.prefix;
    let lacking = Lacking::find(&mut node.connection, prefix, parts).await;
    let (user, address) = (&lacking.user, &node.address);
    let grant =
        |rights: &str| format!("ACL SETUSER {user} {rights}; docs/redis.md lists all rights");
    let patterns = lacking.closed.iter().map(|algorithm| format!("~{prefix}:{algorithm}:*"));
    let closed = patterns.collect::<Vec<_>>().join(" ");
    let limits = || fleet.into_iter().flatten().flat_map(|process| &process.limits);
    let is_used = |algorithm: &&str| limits().any(|it| it.limit.algorithm().as_str() == *algorithm);
    let is_needed = lacking.closed.len() == ALGORITHMS.len() || lacking.closed.iter().any(is_used);
    let uses_rules = context.follows_rules || fleet.is_some_and(|fleet| !fleet.is_empty());

    let seen = format!("{address}: the user `{user}` may");
    if !lacking.to_decide.is_empty() {
        let rights = &lacking.to_decide;
        diagnosis.fail(
            "rights",
            format!("{seen} not decide calls, and lacks {rights}"),
            grant(rights),
        );
    } else if is_needed {
        let seen = format!("{seen} not write the counts of all limits, and lacks {closed}");
        diagnosis.fail("rights", seen, grant(&closed));
    } else if uses_rules && !lacking.to_follow_rules.is_empty() {
        let rights = &lacking.to_follow_rules;
        let seen =
            format!("{seen} decide calls, but not follow rules in Redis, and lacks {rights}");
        diagnosis.warn("rights", seen, grant(rights));
    } else {
        let not = |what: &str, rights: &str| match rights {
            "" => format!(", {what}"),
            rights => format!(", not {what} ({rights})"),
        };
        let follow = not("follow rules", &lacking.to_follow_rules);
        let change = not("change rules", &lacking.to_change_rules);
        let all = not("use all algorithms", &closed);
        diagnosis.ok("rights", format!("{seen} decide calls{follow}{change}{all}"));
    }
}

impl Lacking {
    async fn find(connection: &mut MultiplexedConnection, prefix: &str, parts: &Parts<'_>) -> Self {
        let user = redis::cmd("ACL").arg("WHOAMI").query_async::<String>(connection).await;
        let user = user.unwrap_or_else(|_| parts.user().to_owned());
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
        // Redis 6.2 does not know `EVAL_RO`, and says that. None of these writes: the probe is a text, no element has
        // the score of the range, and no key is made.
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
        let mut closed = Vec::new();
        for algorithm in ALGORITHMS {
            let key = format!("{prefix}:{algorithm}:1s:doctor%");
            if !denied(connection, &[("", vec!["PEXPIRE", &key, "1"])]).await.is_empty() {
                closed.push(algorithm);
            }
        }
        let named = |rights: Vec<&str>| rights.join(" ").replace("PREFIX", prefix);
        Self {
            user,
            to_decide: named(lacking),
            to_follow_rules: named(announce),
            to_change_rules: named(operate),
            closed,
        }
    }
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
