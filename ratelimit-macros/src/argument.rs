//! The arguments of the attribute. Parsing, suggestions and messages derive from this table and from
//! [`exclusions`](crate::exclusions); the tests here compare the lists elsewhere with it.

use std::fmt;

use crate::words::{Word, word_enum};

/// Declares the arguments: their names, what other rate limiters call them, where each can be written, and an example
/// for messages.
macro_rules! arguments {
    ($($variant:ident = $word:literal $(| $synonym:literal)* : $place:ident, $example:literal;)*) => {
        word_enum! {
            /// The name of an argument.
            ArgumentName {
                $($variant = $word $(| $synonym)*,)*
            }
        }

        impl ArgumentName {
            pub(crate) fn place(self) -> Place {
                match self {
                    $(Self::$variant => Place::$place,)*
                }
            }

            /// The argument with a value, to show in messages.
            pub(crate) fn example(self) -> &'static str {
                match self {
                    $(Self::$variant => $example,)*
                }
            }
        }
    };
}

arguments! {
    Period = "period" | "window" | "interval" | "per" | "seconds" | "duration" | "limit_refresh_period":
        OneLimit, "period = 30";
    Threshold = "threshold" | "max" | "requests" | "count" | "calls" | "quota" | "limit_for_period":
        OneLimit, "threshold = 100";
    Algo = "algo" | "algorithm" | "strategy": OneLimit, "algo = \"fixed\"";
    Burst = "burst" | "capacity" | "burst_size": OneLimit, "burst = 200";
    Align = "align" | "timezone" | "tz" | "zone": OneLimit, "align = \"utc\"";
    AlignDay = "align_day" | "billing_day" | "anchor_day": OneLimit, "align_day = 15";
    InFlight = "in_flight" | "concurrent" | "concurrency" | "max_concurrent" | "max_concurrency" | "max_in_flight"
        | "parallel" | "slots": OneLimit, "in_flight = 2";
    Hold = "hold" | "hold_for" | "lease_time" | "max_hold": OneLimit, "hold = \"30s\"";
    Key = "key" | "by" | "cache_key": Anywhere, "key = user_id";
    Cost = "cost" | "weight" | "units" | "permits": Anywhere, "cost = 5";
    Name = "name": Anywhere, "name = \"login\"";
    Limit = "limit": OneLimit, "limit = LOGIN";
    Limiter = "limiter": Attribute, "limiter = state.limiter";
    Scope = "scope" | "rate_type": Attribute, "scope = \"process\"";
    OnError = "on_error": Attribute, "on_error = \"deny\"";
    Shadow = "shadow" | "dry_run": Attribute, "shadow = true";
    Hidden = "hidden" | "hide": Anywhere, "hidden = true";
    NotifyAt = "notify_at" | "warn_at" | "alert_at" | "notify": OneLimit, "notify_at = 80";
    Wait = "wait" | "retry" | "timeout" | "timeout_duration" | "max_wait": Attribute, "wait = \"5s\"";
    Lease = "lease" | "prefetch": WithoutGroups, "lease = 50";
    Once = "once" | "idempotency_key" | "dedup" | "deduplicate": WithoutGroups, "once = user_id";
    Within = "within" | "remember": WithoutGroups, "within = \"1h\"";
    OnLimited = "on_limited" | "fallback" | "fallback_method" | "block_handler" | "on_rejected":
        Attribute, "on_limited = |rejection| Err(rejection)";
    Settle = "settle" | "actual_cost" | "real_cost":
        OneLimit, "settle = |result| result.as_ref().map_or(0, |answer| answer.tokens)";
    CountIf = "count_if" | "only_if" | "charge_if": Anywhere, "count_if = Result::is_err";
    Permit = "permit": OneLimit, "permit = tokens";
    Block = "block" | "block_for" | "close" | "retry_after" | "backoff":
        OneLimit, "block = |result| result.as_ref().err().and_then(Error::retry_after)";
    BlockAtMost = "block_at_most" | "max_block" | "close_at_most" | "max_retry_after" | "max_backoff":
        OneLimit, "block_at_most = \"10m\"";
    Crate = "crate": Attribute, "crate = my_crate::limits";
}

/// Where an argument can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Describes one limit: in the `limit(…)` groups, if the attribute has any.
    OneLimit,
    /// In a group, or beside the groups for all that do not have their own.
    Anywhere,
    /// Beside the groups, never in one.
    Attribute,
    /// Only in an attribute without groups.
    WithoutGroups,
}

impl Place {
    pub(crate) fn is_in_groups(self) -> bool {
        matches!(self, Self::OneLimit | Self::Anywhere)
    }
}

impl fmt::Display for ArgumentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    //! Compares the lists that no compiler checks with the tables of arguments and algorithms: the documentation,
    //! the dictionary of the fuzz target, and the modules that `tests/expander` includes. Also fails for an
    //! argument that is accepted and then ignored.

    use std::fs;
    use std::path::Path;

    use proc_macro2::TokenStream;

    use super::ArgumentName;
    use crate::algorithm::Algorithm;
    use crate::words::Word;

    /// Reads a file of the repository; `path` is relative to this crate.
    fn read(path: &str) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    fn expand(arguments: &str) -> String {
        let item = "async fn call(user_id: u64) -> Result<(), Rejection> { Ok(()) }";
        let item: TokenStream = item.parse().expect("an item");
        crate::rewrite::rewrite(&arguments.parse().expect("tokens"), &item).to_string()
    }

    /// The other arguments that an attribute with `name` needs.
    fn other_arguments(name: ArgumentName) -> &'static str {
        match name {
            ArgumentName::Period => "threshold = 100,",
            ArgumentName::Threshold => "period = \"1d\",",
            ArgumentName::Burst => "period = \"1d\", threshold = 100, algo = \"token_bucket\",",
            ArgumentName::Align => "period = \"1d\", threshold = 100, algo = \"fixed\",",
            ArgumentName::AlignDay => "period = \"month\", threshold = 100,",
            ArgumentName::BlockAtMost => "period = \"1d\", threshold = 100, block = retry_after,",
            ArgumentName::Hold => "in_flight = 2,",
            ArgumentName::Within => "period = \"1d\", threshold = 100, once = user_id,",
            // Each describes a limit.
            ArgumentName::InFlight | ArgumentName::Limit => "",
            _ => "period = \"1d\", threshold = 100,",
        }
    }

    #[test]
    fn every_argument_changes_the_expansion() {
        for name in ArgumentName::ALL {
            let others = other_arguments(*name);
            let with = expand(&format!("{others} {}", name.example()));
            assert!(!with.contains("compile_error"), "{name}: {with}");
            assert_ne!(with, expand(others), "`{name}` is accepted and ignored");
        }
    }

    #[test]
    fn every_path_starts_at_the_given_runtime() {
        for name in ArgumentName::ALL.iter().filter(|name| **name != ArgumentName::Crate) {
            let others = other_arguments(*name);
            let output = expand(&format!("{others} {}, crate = acme::limits", name.example()));
            assert!(output.contains("acme"), "{output}");
            assert!(!output.contains("ratelimit_runtime"), "{name}: {output}");
        }
    }

    #[test]
    fn every_argument_is_documented() {
        let docs = read("docs/rate_limit.md");
        for name in ArgumentName::ALL {
            assert!(docs.contains(&format!("\n| [`{name}`](#{name})")), "no row for `{name}`");
            assert!(docs.contains(&format!("\n## `{name}`\n")), "no section for `{name}`");
        }
        for algorithm in Algorithm::ALL {
            let row = format!("\n| `\"{}\"` |", algorithm.as_str());
            assert!(docs.contains(&row), "no row for `{}`", algorithm.as_str());
        }
    }

    #[test]
    fn fuzz_dictionary_has_every_word() {
        let dictionary = read("../fuzz/attribute.dict");
        for name in ArgumentName::ALL {
            assert!(dictionary.contains(&format!("\"{name}")), "no `{name}`");
        }
        for algorithm in Algorithm::ALL {
            let word = format!("\"\\\"{}\\\"\"", algorithm.as_str());
            assert!(dictionary.contains(&word), "no {word}");
        }
    }

    #[test]
    fn expander_includes_every_module() {
        let (lib, target) = (read("src/lib.rs"), read("../tests/expander/lib.rs"));
        let mut lines = lib.lines().peekable();
        let mut modules = 0;
        while let Some(line) = lines.next() {
            if line == "#[cfg(test)]" {
                lines.next();
            } else if line.starts_with("mod ") {
                assert!(target.contains(&format!("pub(crate) {line}\n")), "{line} is missing");
                modules += 1;
            }
        }
        assert!(modules > 5, "only {modules} modules");
    }
}
