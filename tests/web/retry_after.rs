//! `Retry-After` in all its forms, as the clients of other services read it.

use std::time::SystemTime;

use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue};
use proptest::prelude::*;
use ratelimit_runtime::web::retry_after;

/// The `Date` of a response.
const NOW: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

/// Returns the seconds that a response with these lines of `Retry-After` asks for.
fn seconds_of(date: Option<&str>, lines: &[&str]) -> Option<u64> {
    let date = date.map(|date| (DATE, date));
    let lines = lines.iter().map(|line| (RETRY_AFTER, *line));
    let lines = date.into_iter().chain(lines);
    let headers: HeaderMap =
        lines.map(|(name, line)| (name, line.parse().expect("a header value"))).collect();
    retry_after(&headers).map(|wait| wait.as_secs())
}

#[test]
fn reads_seconds() {
    for (line, wait) in [
        ("120", 120),
        ("0", 0),
        (" 007\t", 7),
        ("2.5", 3),
        ("2.0", 2),
        ("0.001", 1),
        ("99999999999999999999", u64::MAX),
        ("99999999999999999999.9", u64::MAX),
    ] {
        assert_eq!(seconds_of(None, &[line]), Some(wait), "{line:?}");
    }
    for wrong in ["", "soon", "-5", "+5", "5s", "5 6", "1e3", ".5", "5.", "1.2.3", "\"5\""] {
        assert_eq!(seconds_of(None, &[wrong]), None, "{wrong:?}");
    }
    assert_eq!(seconds_of(Some(NOW), &[]), None);
    let latin = HeaderValue::from_bytes(b"5\xff").expect("a header value");
    assert_eq!(retry_after(&HeaderMap::from_iter([(RETRY_AFTER, latin)])), None);
}

/// The three forms of a date (RFC 9110, section 5.6.7), relative to the clock of the service, and several values.
#[test]
fn reads_dates_and_obeys_the_longest_of_several_values() {
    let date = "Sun, 06 Nov 1994 08:51:37 GMT";
    let later = "Sunday, 06-Nov-94 08:52:37 GMT";
    for (lines, wait) in [
        (&[date][..], Some(120)),
        (&[later], Some(180)),
        (&["Sun Nov  6 08:51:37 1994"], Some(120)),
        (&["Sun, 06 Nov 1994 08:49:36 GMT"], Some(0)),
        (&["Sun, 06 Nov 1994 08:51:37"], None),
        (&["Sun, 31 Feb 1994 08:51:37 GMT"], None),
        (&["1994-11-06T08:51:37Z"], None),
        (&["Sun, 120"], Some(120)),
        (&["120, 120"], Some(120)),
        (&["5", "120", "60"], Some(120)),
        (&["5,120,60", "7"], Some(120)),
        (&["x, 5"], Some(5)),
        (&[date, "60"], Some(120)),
        (&[&format!("60, {date}")], Some(120)),
        (&[&format!("{date}, 300")], Some(300)),
        (&[&format!("{date},{later}, 1")], Some(180)),
    ] {
        assert_eq!(seconds_of(Some(NOW), lines), wait, "{lines:?}");
    }
    // Without a `Date`, the clock of this machine.
    for now in [None, Some("today")] {
        assert_eq!(seconds_of(now, &[date]), Some(0));
        let wait = seconds_of(now, &["Fri, 31 Dec 9999 23:59:59 GMT"]).expect("a wait");
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        assert!((253_402_300_700..253_402_300_800).contains(&(wait + since.as_secs())), "{wait}");
    }
}

proptest! {
    #[test]
    fn reads_any_text(text in "[ -~]{0,40}", seconds: u64) {
        let alone = seconds_of(Some(NOW), &[&text]);
        let both = seconds_of(Some(NOW), &[&text, &seconds.to_string()]);
        prop_assert_eq!(both, alone.max(Some(seconds)));
    }
}
