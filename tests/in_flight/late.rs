//! Requests that Redis executes in another order than that in which a process has made them.

use ratelimit_runtime::__private::script_text;
use redis::Connection;
use support::server::Server;

/// Runs the script of one call by hand: the statement `seq` of `process` says that it holds so many units. Returns
/// whether the call is admitted.
fn run(connection: &mut Connection, op: &str, process: u64, seq: u64, units: u64) -> bool {
    let text = script_text("slots").expect("a script");
    let mut eval = redis::cmd("EVAL");
    eval.arg(text).arg(1).arg("slots");
    for argument in [
        format!("op={op}"),
        // The charge of a take has a receipt.
        format!("birth={}", u8::from(op == "take")),
        "cost=1".to_owned(),
        "threshold=1".to_owned(),
        "hold=60000000".to_owned(),
        format!("process={process}"),
        format!("seq={seq}"),
        // As a call of several limits looks.
        format!("operand={}", if op == "peek" { 2 } else { 0 }),
        "epoch=0".to_owned(),
        format!("units={units}"),
        "waited=0".to_owned(),
    ] {
        eval.arg(argument);
    }
    let reply: Vec<String> = eval.query(connection).expect("a reply");
    reply.contains(&"allowed=1".to_owned())
}

/// What a process has stated before its last call arrives after it.
#[test]
fn a_late_statement_frees_no_unit_of_a_later_call() {
    let server = Server::start();
    let connection = &mut server.connection();
    assert!(run(connection, "take", 1, 1, 0), "the first call");
    assert!(run(connection, "take", 1, 3, 0), "it has ended, and the second call begins");
    assert!(!run(connection, "hold", 1, 2, 0), "late");
    assert!(!run(connection, "take", 2, 1, 0), "the second call runs");
    assert!(run(connection, "hold", 1, 4, 0), "it has ended");
    assert!(run(connection, "take", 2, 2, 0));
}

/// A statement that was sent before the release of a call, and arrives after it, takes nothing back.
#[test]
fn a_late_statement_takes_no_released_unit_back() {
    let server = Server::start();
    let connection = &mut server.connection();
    assert!(run(connection, "take", 1, 1, 0));
    assert!(run(connection, "hold", 1, 3, 0));
    assert!(!run(connection, "hold", 1, 2, 1), "late");
    assert!(run(connection, "take", 2, 1, 0), "nobody holds the unit");
    assert!(!run(connection, "take", 1, 4, 0));
}

/// A call whose process does not wait for its reply any longer takes nothing, whenever it arrives.
#[test]
fn a_call_that_was_given_up_takes_nothing() {
    let server = Server::start();
    let connection = &mut server.connection();
    assert!(run(connection, "take", 1, 1, 0), "given up, and in time");
    assert!(run(connection, "hold", 1, 3, 0));
    assert!(!run(connection, "take", 1, 2, 0), "given up, and late");
    assert!(!run(connection, "take", 1, 3, 0), "twice");
    assert!(run(connection, "take", 1, 4, 0), "nobody holds the unit");
    assert!(!run(connection, "hold", 1, 2, 5), "late");
    assert!(!run(connection, "take", 2, 1, 0), "the last call runs");
}

/// The first request after the loss of a reply drops what was taken without one, also if it is rejected.
#[test]
fn a_call_drops_what_a_lost_reply_has_left() {
    let server = Server::start();
    let connection = &mut server.connection();
    assert!(run(connection, "take", 1, 1, 0), "the reply is lost");
    assert!(run(connection, "take", 1, 2, 0));
    assert!(!run(connection, "take", 2, 1, 0));
    assert!(run(connection, "hold", 1, 3, 0));
    assert!(run(connection, "take", 2, 2, 0));
}

/// A server that has lost its memory learns what runs, also above the limit.
#[test]
fn what_is_stated_is_adopted() {
    let server = Server::start();
    let connection = &mut server.connection();
    assert!(run(connection, "take", 2, 1, 0), "of another process, after the loss");
    assert!(run(connection, "hold", 1, 7, 1));
    assert!(!run(connection, "take", 1, 8, 1));
    assert!(run(connection, "hold", 2, 2, 0));
    assert!(!run(connection, "take", 2, 3, 0), "the first process still has its unit");
}
