//! How the tool shows texts of Redis and durations, and reads durations.

use std::time::Duration;

use ratelimit_runtime::Limit;

/// Returns a text of Redis without characters that a terminal obeys or hides. Whoever can write into Redis chooses it.
pub(crate) fn shown(text: &str) -> String {
    let mut shown = String::new();
    for character in text.chars() {
        match character {
            '\n' | '"' | '\'' | '\\' => shown.push(character),
            other => shown.extend(other.escape_debug()),
        }
    }
    shown
}

/// Returns a duration as `read_duration` reads it, rounded up: `350ms`, `59m48s`, `1d3h`.
pub(crate) fn duration(duration: Duration) -> String {
    let milliseconds = duration.as_nanos().div_ceil(1_000_000);
    if (1..1_000).contains(&milliseconds) {
        return format!("{milliseconds}ms");
    }
    let seconds = milliseconds.div_ceil(1_000);
    // Of a day or more, whole hours.
    let seconds = if seconds < 86_400 { seconds } else { seconds.next_multiple_of(3_600) };
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let parts = [(days, 'd'), (rest / 3_600, 'h'), (rest / 60 % 60, 'm'), (rest % 60, 's')];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    let text: Vec<_> = parts.map(|(count, unit)| format!("{count}{unit}")).collect();
    if text.is_empty() { "0s".to_owned() } else { text.concat() }
}

/// Reads a duration as the attribute does: `30s`, `1h30m`.
pub(crate) fn read_duration(text: &str) -> anyhow::Result<Duration> {
    Ok(Limit::parse("duration", &format!("1/{text}"))?.period())
}
