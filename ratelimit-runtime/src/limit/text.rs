//! Limits written as text: `300/minute`, `5 per 30s burst 20`.

use std::fmt;
use std::time::Duration;

use super::{Algorithm, Calendar, Lease, Limit, LimitError, Name, Scope};
use crate::printing::error_of_text;
use crate::text::limit::LimitText;

/// The error of a [`Limit`] in a text or a configuration. It says what is wrong, and what to write.
#[derive(Clone, PartialEq, Eq)]
pub struct ParseLimitError(String);

impl ParseLimitError {
    pub(super) fn new(message: impl fmt::Display) -> Self {
        Self(message.to_string())
    }
}

error_of_text!(ParseLimitError);

/// Shows a limit as [`Limit::parse`] reads it, after the name, and what its policy says.
impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Limit({}: {}", self.name(), self.threshold())?;
        if self.is_in_flight() {
            f.write_str(" in flight")?;
        } else {
            write!(f, " per {}", self.terms.identity.period)?;
            if self.policy.has_burst {
                write!(f, " burst {}", self.capacity())?;
            }
            write!(f, " {}", self.algorithm())?;
        }
        let policy = self.policy;
        let settings = [
            self.terms.identity.align.map(|align| format!("align {align}")),
            (policy.scope != Scope::Global).then(|| format!("{:?}", policy.scope)),
            policy.on_error.map(|on_error| format!("on_error {on_error:?}")),
            policy.wait.map(|wait| format!("wait {wait:?}")),
            (policy.lease != Lease::None).then(|| format!("lease {:?}", policy.lease)),
            policy.hold.map(|hold| format!("hold {hold:?}")),
            policy.notify_at.map(|percent| format!("notify_at {percent}")),
            policy.shadow.then(|| "shadow".to_owned()),
            policy.hidden.then(|| "hidden".to_owned()),
            policy.once.then(|| "once".to_owned()),
        ];
        settings.into_iter().flatten().try_for_each(|setting| write!(f, ", {setting}"))?;
        f.write_str(")")
    }
}

impl Limit {
    /// Reads a limit from a text: a threshold and a period, then, in any order, a burst and an algorithm.
    ///
    /// | text | limit |
    /// | --- | --- |
    /// | `300/minute` | 300 in any minute: a sliding window |
    /// | `300 per 1h30m` | the period as in the attribute |
    /// | `300 per day fixed` | another algorithm, by its word in the attribute |
    /// | `300/month` | windows of the calendar, with the feature `calendar`; also `quarter` and `year` |
    /// | `5 per 30s burst 20` | a token bucket, because a burst is the capacity of a bucket |
    /// | `5 per 30s burst 20 leaky_bucket` | another bucket |
    ///
    /// ```
    /// use ratelimit_runtime::{Algorithm, Limit};
    ///
    /// let limit = Limit::parse("api", "5 per 30s burst 20")?;
    /// assert_eq!((limit.threshold(), limit.capacity()), (5, 20));
    /// assert_eq!(limit.algorithm(), Algorithm::TokenBucket);
    ///
    /// let error = Limit::parse("api", "5 per 30s brust 20").unwrap_err();
    /// assert!(error.to_string().contains("did you mean `burst`?"));
    /// # Ok::<(), ratelimit_runtime::ParseLimitError>(())
    /// ```
    ///
    /// The process keeps the name: see [`kept_name`](Self::kept_name).
    ///
    /// # Errors
    ///
    /// On a text of another form; on values that [`Limit::new`], [`try_burst`](Self::try_burst) or
    /// [`kept_name`](Self::kept_name) reject.
    pub fn parse(name: &str, text: &str) -> Result<Self, ParseLimitError> {
        LimitText::read(text, &Algorithm::RATES.map(Algorithm::as_str))
            .map_err(ParseLimitError)
            .and_then(|values| limit_of(Limit::kept_name(name), &values))
            .map_err(|error| ParseLimitError::new(format_args!("the limit `{text}`: {error}")))
    }
}

/// Creates a limit. Without an algorithm, a limit with a burst is a token bucket, one of the calendar fixed, and any
/// other a sliding window.
pub(super) fn limit_of(
    name: Result<Name, LimitError>,
    values: &LimitText,
) -> Result<Limit, ParseLimitError> {
    let LimitText { threshold, period: (micros, unit), burst, algorithm } = *values;
    let default = if burst.is_some() { Algorithm::TokenBucket } else { Algorithm::Sliding };
    let is_meant = |known: &Algorithm| Some(known.as_str()) == algorithm;
    let algorithm = Algorithm::RATES.into_iter().find(is_meant);
    let limit = name.and_then(|name| match unit.and_then(Calendar::find) {
        None => {
            let period = Duration::from_micros(micros);
            Limit::new(name, algorithm.unwrap_or(default), threshold, period)
        }
        Some(unit) if algorithm.is_none_or(|algorithm| algorithm == Algorithm::Fixed) => {
            Limit::try_calendar(name, threshold, unit)
        }
        Some(_) => Err(LimitError(
            "months, quarters and years are `fixed`: remove the algorithm, or write days",
        )),
    });
    let with_burst = |limit: Limit| burst.map_or(Ok(limit), |burst| limit.try_burst(burst));
    limit.and_then(with_burst).map_err(ParseLimitError::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn error(text: &str) -> String {
        Limit::parse("text", text).expect_err(text).to_string()
    }

    #[test]
    fn texts_are_limits() {
        let seconds = Duration::from_secs;
        for (text, algorithm, threshold, period, capacity) in [
            ("300/minute", Algorithm::Sliding, 300, seconds(60), 300),
            ("300 / 10 seconds", Algorithm::Sliding, 300, seconds(10), 300),
            ("5_000 per 1h30m", Algorithm::Sliding, 5_000, seconds(5_400), 5_000),
            ("1 per 1 h 30 m fixed", Algorithm::Fixed, 1, seconds(5_400), 1),
            ("1/day fixed", Algorithm::Fixed, 1, seconds(86_400), 1),
            ("5 per 30s burst 20", Algorithm::TokenBucket, 5, seconds(30), 20),
            ("5/s leaky_bucket burst 2", Algorithm::LeakyBucket, 5, seconds(1), 2),
            ("5/250ms token_bucket", Algorithm::TokenBucket, 5, Duration::from_millis(250), 5),
        ] {
            let limit = Limit::parse("text", text).expect(text);
            assert_eq!(limit.name(), "text");
            let values = (limit.algorithm(), limit.threshold(), limit.period(), limit.capacity());
            assert_eq!(values, (algorithm, threshold, period, capacity), "{text}");
        }
    }

    #[test]
    fn a_limit_shows_its_text() {
        let shown = |text: &str| format!("{:?}", Limit::parse("api", text).expect(text));
        assert_eq!(shown("300/minute"), "Limit(api: 300 per 1m sliding)");
        assert_eq!(shown("5 per 90s burst 20"), "Limit(api: 5 per 90s burst 20 token_bucket)");
        let limit = Limit::parse("api", "5/s").expect("valid").shadow(true).hidden(true);
        let limit = limit.wait(Duration::from_secs(2)).scope(Scope::Process);
        let expected = "Limit(api: 5 per 1s sliding, Process, wait 2s, shadow, hidden)";
        assert_eq!(format!("{limit:?}"), expected);
        let slots = Limit::in_flight("exports", 2);
        assert_eq!(format!("{slots:?}"), "Limit(exports: 2 in flight, hold 30s)");
    }

    #[test]
    fn errors_say_what_to_write() {
        for (text, words) in [
            ("", "such as `300/minute`"),
            ("300", "such as `300/minute`"),
            ("300 each minute", "such as `300/minute`"),
            ("3.5/minute", "the threshold `3.5` is not a whole number"),
            ("5000000000000000/minute", "the largest is 999999999999999"),
            ("0/minute", "`threshold` must be at least 1"),
            ("5/0s", "cannot be zero"),
            ("5/fortnight", "unknown unit `fortnight`"),
            ("5/30 min", "did you mean `m`?"),
            ("5/30", "`30` has no unit"),
            ("5/30s brust 7", "unknown word `brust`: did you mean `burst`?"),
            ("5/30s token-bucket", "did you mean `token_bucket`?"),
            ("5/30s often", "`burst` with a number, or an algorithm: `sliding`, `fixed`"),
            ("5/30s burst", "needs a number"),
            ("5/30s burst 2 burst 3", "written twice"),
            ("5/30s sliding fixed", "one algorithm"),
            ("5/30s sliding burst 3", "use it with token_bucket or leaky_bucket"),
            ("1/day burst 4000000", "more than 100 years to fill"),
        ] {
            let message = error(text);
            assert!(message.contains(words), "{text}: {message}");
            assert!(message.contains(text), "{text}: {message}");
        }
        assert!(Limit::parse("", "5/s").expect_err("no name").to_string().contains("empty"));
    }

    #[test]
    fn a_name_is_kept_once() {
        let name = |text: &str| Limit::kept_name(text).expect("a name");
        let made = String::from("kept once");
        assert!(std::ptr::eq(name(&made), name("kept once")));
    }
}
