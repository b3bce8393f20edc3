//! Requests that Redis executes in another order than that in which a process has made them.

use ratelimit_runtime::__private::script_text;
use redis::Connection;
use support::server::Server;

/// Runs the script of one call by hand: `process` states what it has taken and released. Returns whether the call is
/// admitted.
fn run(connection: &mut Connection, op: &str, process: u32, taken: u32, released: u32) -> bool {
    run_in(connection, 1, op, process, taken, released)
}

/// The same, with a fence.
fn run_in(
    connection: &mut Connection,
    fence: u32,
    op: &str,
    process: u32,
    taken: u32,
    released: u32,
) -> bool {
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
        format!("fence={fence}"),
        // As a call of several limits looks.
        format!("operand={}", if op == "peek" { 2 } else { 0 }),
        "epoch=0".to_owned(),
        format!("taken={taken}"),
        format!("released={released}"),
        format!("promised={}", 1_u64 << 52),
        "waited=0".to_owned(),
    ] {
        eval.arg(argument);
    }
    let reply: Vec<String> = eval.query(connection).expect("a reply");
    reply.contains(&"allowed=1".to_owned())
}

/// Two calls were sent when five units were taken and released. The first one ends before the second one arrives, and
/// what the process has stated in between arrives last.
#[test]
fn a_late_statement_frees_no_unit_of_a_later_call() {
    let server = Server::start();
    let connection = &mut server.connection();
    assert!(run(connection, "take", 1, 5, 5), "the first call");
    assert!(run(connection, "hold", 1, 6, 6), "it has ended");
    assert!(run(connection, "take", 1, 5, 5), "the second call");
    assert!(run(connection, "hold", 1, 6, 6), "late");
    assert!(!run(connection, "take", 2, 0, 0), "the second call runs");
    assert!(run(connection, "hold", 1, 7, 7), "it has ended");
    assert!(run(connection, "take", 2, 0, 0));
}

/// A call that was sent before the release of another one, and arrives after it, takes nothing back.
#[test]
fn a_late_call_takes_no_released_unit_back() {
    let server = Server::start();
    let connection = &mut server.connection();
    assert!(run(connection, "take", 1, 0, 0));
    assert!(run(connection, "hold", 1, 1, 1));
    assert!(run(connection, "hold", 1, 1, 0), "late");
    assert!(run(connection, "take", 2, 0, 0), "nobody holds the unit");
    assert!(!run(connection, "take", 1, 1, 1));
}

/// A call whose process does not wait for its reply any longer takes nothing, whenever it arrives.
#[test]
fn a_call_that_was_given_up_takes_nothing() {
    let server = Server::start();
    let connection = &mut server.connection();
    assert!(run_in(connection, 1, "take", 1, 0, 0), "given up, and in time");
    assert!(run_in(connection, 2, "hold", 1, 0, 0));
    assert!(!run_in(connection, 1, "take", 1, 0, 0), "given up, and late");
    assert!(!run_in(connection, 1, "peek", 1, 0, 0), "of several limits");
    assert!(run_in(connection, 1, "hold", 1, 1, 0), "a late statement states nothing");
    assert!(run_in(connection, 2, "take", 1, 0, 0), "nobody holds the unit");
    assert!(run_in(connection, 1, "hold", 1, 5, 5), "of a holder before");
    assert!(!run_in(connection, 1, "take", 2, 0, 0), "the last call runs");
}

/// The first request after the loss of a reply drops what was taken without one, also if it is rejected.
#[test]
fn a_call_drops_what_a_lost_reply_has_left() {
    let server = Server::start();
    let connection = &mut server.connection();
    assert!(run_in(connection, 1, "take", 1, 0, 0), "the reply is lost");
    assert!(run_in(connection, 2, "take", 1, 0, 0));
    assert!(!run_in(connection, 1, "take", 2, 0, 0));
    assert!(run_in(connection, 2, "hold", 1, 1, 1));
    assert!(run_in(connection, 1, "take", 2, 0, 0));
}
