//! What commands print: one line of JSON, or text in which nothing controls the terminal.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::time::{Duration, SystemTime};

use anstyle::{AnsiColor, Style};
use ratelimit_runtime::Limit;
use serde::Serialize;

pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const DOUBTFUL: Style = AnsiColor::Yellow.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();

/// What a command reports.
pub(crate) trait Report: Serialize {
    /// Writes the report for a reader.
    fn write(&self, text: &mut Text) -> fmt::Result;

    /// Returns whether the command has found something that is not as it must be.
    fn has_findings(&self) -> bool {
        false
    }
}

/// Text for a terminal. What is written to it is escaped: clients choose keys, and whoever can write into Redis chooses
/// the rest. Only [`Text::styled`] adds control characters.
#[derive(Default)]
pub(crate) struct Text(String);

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.push_str(&shown(text));
        Ok(())
    }
}

impl Text {
    pub(crate) fn styled(&mut self, style: Style, text: &str) {
        let _ = write!(self.0, "{style}{}{style:#}", shown(text));
    }
}

/// Prints a report to the standard output. There are colours only on a terminal, and none with `NO_COLOR`.
pub(crate) fn print(report: &impl Report, is_json: bool) -> anyhow::Result<()> {
    let text = if is_json {
        let mut json = serde_json::to_string(report)?;
        json.push('\n');
        escaped_json(&json)
    } else {
        let mut text = Text::default();
        report.write(&mut text)?;
        text.0
    };
    let mut out = anstream::stdout();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Prints a note to the standard error.
pub(crate) fn note(text: &str) {
    anstream::eprintln!("{}", shown(text));
}

/// Prints an error to the standard error.
pub(crate) fn print_error(error: &anyhow::Error) {
    anstream::eprintln!("{BAD}Error:{BAD:#} {}", shown(&causes(error)));
}

/// Returns an error and its causes, without those that the text before them repeats.
pub(crate) fn causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.ends_with(&cause) {
            let between = if text.is_empty() { "" } else { ": " };
            text.extend([between, &cause]);
        }
    }
    text
}

/// Prints a question to the standard error, and returns the line that answers it.
pub(crate) fn ask(question: &str) -> io::Result<String> {
    anstream::eprint!("{}", shown(question));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(answer)
}

/// Returns a text without characters that a terminal obeys or hides.
fn shown(text: &str) -> String {
    let mut shown = String::new();
    for character in text.chars() {
        match character {
            '\n' | '"' | '\'' | '\\' => shown.push(character),
            other => shown.extend(other.escape_debug()),
        }
    }
    shown
}

/// Returns JSON in which the characters that JSON allows in a string, and a terminal obeys or hides, are escaped.
fn escaped_json(json: &str) -> String {
    let mut escaped = String::new();
    for character in json.chars() {
        if character.is_ascii_graphic() || " \n".contains(character) || shown_alone(character) {
            escaped.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        }
    }
    escaped
}

fn shown_alone(character: char) -> bool {
    character.escape_debug().eq([character])
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
pub(crate) fn read_duration(text: &str) -> Result<Duration, String> {
    match Limit::parse("duration", &format!("1/{text}")) {
        Ok(limit) => Ok(limit.period()),
        Err(_) => Err("write a duration, such as 30s or 1h30m".to_owned()),
    }
}

/// Returns whole milliseconds, rounded up, for JSON.
pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Returns the milliseconds from 1970 to a time, for JSON.
pub(crate) fn unix_milliseconds(time: SystemTime) -> u64 {
    milliseconds(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

/// Returns the median and the 99th percentile of durations.
pub(crate) fn quantiles(mut durations: Vec<Duration>) -> (Duration, Duration) {
    durations.sort_unstable();
    let quantile = |part: usize| {
        let last = durations.len().saturating_sub(1);
        durations.get(last * part / 100).copied().unwrap_or_default()
    };
    (quantile(50), quantile(99))
}

/// Returns a short duration with two or three digits: `85 µs`, `1.3 ms`.
pub(crate) fn brief(duration: Duration) -> String {
    let micros = duration.as_secs_f64() * 1e6;
    match micros {
        ..10.0 => format!("{micros:.1} µs"),
        ..1_000.0 => format!("{micros:.0} µs"),
        _ => format!("{:.1} ms", micros / 1e3),
    }
}
