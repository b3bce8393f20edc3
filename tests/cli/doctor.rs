//! The command `doctor`, on servers with and without faults.

use std::process::Command;

use redis::Commands;
use serde_json::{Value, json};
use support::cluster::Cluster;
use support::sentinel::Sentinels;
use support::server::{Server, start_with_tls};

use crate::operator::{announce, announced, call};
use crate::{ratelimit, with_certificates};

/// Examines a Redis. Returns the exit code, and the report.
fn examine(url: &str, set: impl Fn(&mut Command)) -> (i32, Value) {
    let mut doctor = ratelimit(&["doctor", "--json", "--redis", url]);
    // The machines of tests are slow, and their latency is not what these tests are about.
    doctor.env("RATELIMIT_DEADLINE", "30s");
    set(&mut doctor);
    let output = doctor.output().expect("it runs");
    let report = serde_json::from_slice(&output.stdout).expect("JSON");
    (output.status.code().expect("it ends"), report)
}

/// Returns what is not in order: the checks, and all that they say.
fn findings(report: &Value) -> (Vec<&str>, String) {
    let all = report["findings"].as_array().expect("findings").iter();
    let all: Vec<_> = all.filter(|finding| finding["verdict"] != "ok").collect();
    for finding in &all {
        assert!(finding["advice"].as_str().is_some_and(|advice| !advice.is_empty()), "{finding}");
    }
    let checks = all.iter().map(|finding| finding["check"].as_str().expect("a name")).collect();
    (checks, all.iter().map(|finding| finding.to_string() + "\n").collect())
}

#[track_caller]
fn assert_finds(url: &str, set: impl Fn(&mut Command), checks: &[&str], words: &[&str]) {
    let (code, report) = examine(url, set);
    let (found, text) = findings(&report);
    assert_eq!((code, &*found), (3, checks), "{text}");
    assert!(words.iter().all(|words| text.contains(words)), "{words:?}: {text}");
}

/// Asserts that nothing is found, and returns the report.
#[track_caller]
fn assert_is_good(url: &str, set: impl Fn(&mut Command)) -> Value {
    let (code, report) = examine(url, set);
    assert_eq!((code, findings(&report)), (0, (vec![], String::new())));
    report
}

fn checks(report: &Value) -> Vec<&str> {
    let findings = report["findings"].as_array().expect("findings").iter();
    findings.map(|finding| finding["check"].as_str().expect("a name")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_nothing_on_a_good_server_and_measures_its_keys() {
    let server = Server::start();
    let service = announced(&server).await;
    for tenant in ["bob", "(x:y)"] {
        service.scope(call(tenant)).await.expect("admitted");
    }
    let report = assert_is_good(&server.url, |_| {});
    let all = "url connection rights server eviction replicas persistence latency decision memory \
               ttl values fleet releases clock";
    assert_eq!(checks(&report).join(" "), all);
    let memory = report["memory"].as_array().expect("limits");
    let api = memory.iter().find(|limit| limit["limit"] == "api (sliding, 1m)").expect("api");
    assert_eq!(api["keys"], json!(3));
    assert!((100..500).contains(&api["median_bytes"].as_u64().expect("bytes")), "{api}");
    server.assert_all_keys_expire();
}

#[test]
fn doctor_estimates_the_memory_of_many_keys_by_a_sample() {
    let server = Server::start();
    let write = "for i = 1, 30000 do
        redis.call('SET', 'rl:fixed:1m:api{' .. i .. '}', string.rep('x', 33), 'EX', 600)
        redis.call('SET', 'of another application:' .. i, 'x')
    end";
    redis::cmd("EVAL").arg(write).arg(0).exec(&mut server.connection()).expect("EVAL");
    let (code, report) = examine(&server.url, |_| {});
    assert_eq!(code, 0, "{report}");
    let api = &report["memory"][0];
    assert_eq!(api["limit"], "api (fixed, 1m)", "{report}");
    let keys = api["keys"].as_u64().expect("a number");
    // A sample of 20,000 of 60,000 keys has a standard deviation of 180 here.
    assert!((29_000..31_000).contains(&keys), "{report}");
    let (median, bytes) = (&api["median_bytes"], api["bytes"].as_u64().expect("bytes"));
    let median = median.as_u64().expect("bytes");
    assert!((100..400).contains(&median) && (bytes / keys).abs_diff(median) < 10, "{api}");
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_what_can_become_of_counts_and_rules() {
    let server = Server::start();
    server.command::<()>("CONFIG SET maxmemory 100mb");
    server.command::<()>("CONFIG SET maxmemory-policy allkeys-lru");
    let eviction = ["`allkeys-lru`", "the rules can be lost", "maxmemory-policy noeviction"];
    assert_finds(&server.url, |_| {}, &["eviction"], &eviction);
    server.command::<()>("CONFIG SET maxmemory-policy noeviction");

    let _service = announced(&server).await;
    // Another program removes a TTL, and writes a value where a count should be.
    let mut connection = server.connection();
    let () = connection.persist("rl:sliding:1m:api{acme}").expect("PERSIST");
    let () = connection.set_ex("rl:sliding:1m:api{bob}", "text", 60).expect("written");
    let words = ["`rl:sliding:1m:api{acme}`", "DEL them", "1 of 2 values", "api{bob}"];
    assert_finds(&server.url, |_| {}, &["ttl", "values"], &words);
    let () = connection.del("rl:sliding:1m:api{acme}").expect("DEL");
    let () = connection.del("rl:sliding:1m:api{bob}").expect("DEL");

    // A process of another release, with other amounts and other rules; and rules without an append-only file.
    let limit =
        r#"{"limit":{"name":"api","threshold":7,"period":"1m"},"place":"","is_computed":false}"#;
    let process = format!(r#"{{"id":"old-1","rules":"1-x","limits":[{limit}]}}"#);
    announce(&server, &process);
    let lost =
        ["Redis has lost the rules that 1 of 2 processes obey: old-1", "`ratelimit restore`"];
    assert_finds(&server.url, |_| {}, &["fleet", "releases"], &lost);
    let rules = [("version", "2-y"), ("rules", r#"{"api":{"threshold":9}}"#)];
    let () = connection.hset_multiple("rl:{rules}", &rules).expect("written");
    let words = ["older rules", "old-1", "finish the deployment", "`ratelimit save > rules.json`"];
    assert_finds(&server.url, |_| {}, &["persistence", "fleet", "releases"], &words);
}

#[test]
fn doctor_finds_the_rights_that_a_user_lacks() {
    let server = Server::start();
    let user = |rights: &str| server.command::<()>(&format!("ACL SETUSER limiter {rights}"));
    let url = server.url.replace("://", "://limiter:password@");
    let rest = ["server", "memory", "fleet"];
    user("reset on >password ~rl:* +time");
    let all = [&["rights"], &rest[..1], &["decision"], &rest[1..]].concat();
    let words =
        ["ACL SETUSER limiter", "+set +get +mget +getrange", "+evalsha", "+info", "+memory|usage"];
    assert_finds(&url, |_| {}, &all, &words);
    // As `docs/redis.md` lists them for a service with one algorithm, which reads no rules.
    let count = "+eval +evalsha +time +get +mget +set +getrange +setrange +pexpire +del +unlink";
    user(&format!("reset on >password ~rl:sliding:* ~rl:probe* {count}"));
    assert_finds(&url, |_| {}, &rest, &[]);
    let with_rules = |doctor: &mut Command| _ = doctor.env("RATELIMIT_RULES", "redis");
    let all = [&["rights"], &rest[..]].concat();
    assert_finds(&url, with_rules, &all, &["+hget", "~rl:{rules}:process*"]);
    assert_finds(&server.url.replace("://", "://:wrong@"), |_| {}, &["connection"], &["password"]);
}

#[test]
fn doctor_names_a_url_that_leads_nowhere() {
    for (url, check, words) in [
        ("redis://:secret@127.0.0.1:1", "connection", "cannot connect to 127.0.0.1:1"),
        ("redis+cluster://:secret@127.0.0.1:1", "connection", "no node replies at 127.0.0.1:1"),
        ("redis+cluster://127.0.0.1:1/2", "url", "remove the path of the URL"),
        ("redis+sentinel://127.0.0.1:1/shop", "connection", "no Sentinel replies"),
        ("http://ann:secret@127.0.0.1", "url", "write `redis://[user:password@]host"),
    ] {
        let (code, report) = examine(url, |_| {});
        let (found, text) = findings(&report);
        assert_eq!((code, &*found), (3, &[check][..]), "{text}");
        assert!(text.contains(words) && !text.contains("secret"), "{text}");
    }
    let mut doctor = ratelimit(&["doctor", "--redis", "redis://127.0.0.1:1"]);
    let text = String::from_utf8(doctor.output().expect("it runs").stdout).expect("UTF-8");
    assert!(text.contains("fail  connection") && text.contains("do: start the server"), "{text}");
    assert!(text.ends_with("\n1 finding\n"), "{text}");
}

#[test]
fn doctor_examines_each_primary_of_a_cluster_and_that_of_sentinels() {
    let cluster = Cluster::start(1);
    let report = assert_is_good(&cluster.url(), |_| {});
    assert_eq!(checks(&report).iter().filter(|check| **check == "clock").count(), 3);
    let (code, report) = examine(&format!("redis://127.0.0.1:{}", cluster.port(0)), |_| {});
    let (found, text) = findings(&report);
    assert!(code == 3 && found.contains(&"server"), "{text}");
    assert!(text.contains("begin the URL with redis+cluster://"), "{text}");

    let sentinels = Sentinels::start();
    assert_is_good(&sentinels.url("master0"), |_| {});
    let (host, port) = sentinels.replica();
    let (_, report) = examine(&format!("redis://{host}:{port}"), |_| {});
    let (found, text) = findings(&report);
    assert!(found.contains(&"replicas") && text.contains("a replica of"), "{text}");
}

#[test]
fn doctor_reads_certificates_and_passwords_of_files() {
    let (server, url) = start_with_tls();
    assert_is_good(&url, |doctor| with_certificates(doctor, &server));
    assert_finds(&url, |_| {}, &["connection"], &["RATELIMIT_ROOT_CERTIFICATES"]);

    let folder = tempfile::tempdir().expect("a folder");
    let password = folder.path().join("password");
    std::fs::write(&password, "right\n").expect("written");
    let server = Server::start();
    server.command::<()>("CONFIG SET requirepass right");
    assert_is_good(&server.url, |doctor| _ = doctor.env("RATELIMIT_PASSWORD_FILE", &password));
}
