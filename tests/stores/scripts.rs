//! Every script that ARCHITECTURE.md runs by hand does run, with `redis-cli`.

use std::fs;
use std::process::Command;

use support::server::Server;

const GUIDE: &str = include_str!("../../ARCHITECTURE.md");

/// The name and the arguments of each script, as the guide has them, and the units that remain after a refund. A lease
/// keeps its reserve.
const SCRIPTS: [(&str, &str, u64); 6] = [
    ("sliding", "threshold=10 period=60000000", 10),
    ("fixed", "threshold=10 period=60000000 shift=-1", 10),
    ("sliding_counter", "threshold=10 period=60000000 grain=1 span=60000000", 10),
    ("bucket", "burst=10 token=6000000 drain=1", 10),
    ("leased_bucket", "burst=10 token=6000000 drain=1 term=1000000 reserve=1", 9),
    ("slots", "threshold=10 hold=30000000 process=0 seq=0 units=0 epoch=0 waited=0", 6),
];

/// Runs a script that the documented command prints on a key of its own, and returns the reply.
fn eval(server: &Server, name: &str, arguments: &str) -> String {
    let printed = Command::new(env!("CARGO_BIN_EXE_script")).arg(name).output().expect("it runs");
    assert!(printed.status.success(), "{name}");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("script.lua");
    fs::write(&path, printed.stdout).expect("written");
    let mut command = Command::new("redis-cli");
    command.args(["-p", &server.port().to_string(), "--eval"]).arg(path).args([name, ","]);
    let output = command.args(arguments.split(' ')).output().expect("redis-cli runs");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn number(reply: &str, name: &str) -> u64 {
    let mut lines = reply.lines().filter_map(|line| line.split_once('='));
    let (_, value) = lines.find(|(found, _)| *found == name).expect(reply);
    value.parse().expect(reply)
}

#[test]
fn a_script_of_one_call_decides_what_is_typed() {
    let server = Server::start();
    for (name, terms, left) in SCRIPTS {
        let (_, last) = terms.rsplit_once("drain=1 ").unwrap_or(("", terms));
        assert!(GUIDE.contains(last), "{name}");
        let first = eval(&server, name, terms);
        assert_eq!(number(&first, "allowed"), 1, "{name}: {first}");
        let peek = eval(&server, name, &format!("{terms} op=peek cost=10"));
        assert_eq!(number(&peek, "allowed"), 0, "{name}: {peek}");
        // The end of a call is unknown, and a refund does not end it.
        let is_slots = name == "slots";
        assert_eq!(number(&peek, "retry") > 0, !is_slots, "{name}: {peek}");
        let clock = number(&first, "clock");
        let second = eval(&server, name, &format!("{terms} cost=3 clock={clock}"));
        assert_eq!(number(&second, "clock"), clock, "{name}: {second}");
        assert!(number(&second, "remaining") <= 6, "{name}: {second}");
        let refund = eval(&server, name, &format!("{terms} op=correct cost=-4 clock={clock}"));
        assert_eq!(number(&refund, "remaining"), left, "{name}: {refund}");
    }
    server.assert_all_keys_expire();
}

#[test]
fn a_mistake_in_what_is_typed_is_named() {
    let server = Server::start();
    for (arguments, named) in [
        ("threshold=10", "period="),
        ("threshold=10 period=x", "period="),
        ("threshold=10 period=1000000 shift=-1 burst=5", "burst"),
        ("threshold=10 period=1000000 shift=-1 op=book", "book"),
        ("threshold", "name=value"),
    ] {
        let reply = eval(&server, "fixed", arguments);
        assert!(reply.contains(named) && reply.contains("ERR"), "{arguments}: {reply}");
    }
    assert!(server.ttls().is_empty());
}
