//! Which arguments exclude each other: one table. The error points at the argument that has no effect.

use crate::args::Args;
#[allow(clippy::enum_glob_use, reason = "the table names most of them")]
use crate::argument::ArgumentName::{self, *};
use crate::argument::Place;
use crate::words::Word;

/// Arguments that have no place beside another one, and what to write instead. In the message, `{name}` is the
/// argument, and `{other}` the other one.
struct Exclusion(&'static [ArgumentName], Beside, &'static str);

#[derive(Clone, Copy)]
enum Beside {
    Given(ArgumentName),
    /// An argument whose value is a path.
    Path(ArgumentName),
    /// An argument with this value.
    Value(ArgumentName, &'static str),
    /// The argument is missing.
    Without(ArgumentName),
}

use Beside::{Given, Path, Value, Without};

/// The first that applies to an argument is reported.
const EXCLUSIONS: &[Exclusion] = &[
    Exclusion(
        // Leased units can be counted elsewhere, where code that names the constant would not find them.
        &[Period, Algo, Align, AlignDay, InFlight, Hold, Name, Lease],
        Path(Limit),
        "`{name}` is part of the limit that `limit` names: remove it, or change the constant",
    ),
    Exclusion(
        &[Period],
        Given(InFlight),
        "`in_flight` limits how many calls run at the same time, and has no `period`: how long a slot is kept is \
         `hold`; for a rate beside it, write two groups, `limit(period = .., threshold = ..), limit(in_flight = .., \
         hold = ..)`",
    ),
    Exclusion(
        &[Threshold, Algo, Burst, Align, AlignDay],
        Given(InFlight),
        "`in_flight` limits how many calls run at the same time, and has no `{name}`: for a rate beside it, write two \
         groups, `limit(period = .., threshold = ..), limit(in_flight = .., hold = ..)`",
    ),
    Exclusion(
        &[Lease],
        Given(InFlight),
        "`in_flight` limits how many calls run at the same time, and has no `lease`: remove `lease`",
    ),
    Exclusion(
        &[Settle, CountIf],
        Given(InFlight),
        "`{name}` corrects the charge of a rate, and a slot is free as soon as its call has ended: remove `{name}`, or \
         move it to a rate beside this limit",
    ),
    Exclusion(
        &[Once],
        Path(Limit),
        "`once` needs a limit that is written here: write `period` and `threshold`, or two groups, `limit(limit = \
         SENT, key = (user_id, request_id)), limit(limit = LOGIN, key = user_id)`, with `const SENT: Limit = \
         Limit::once(\"sent\", Duration::from_secs(3600))`",
    ),
    Exclusion(
        &[Once],
        Given(InFlight),
        "`in_flight` limits how many calls run at the same time, also those that were sent before: remove `once`",
    ),
    Exclusion(
        &[Hold],
        Without(InFlight),
        "`hold` is for calls in flight, whose slots Redis keeps for so long after a process was killed: remove `hold`, \
         or add `in_flight`",
    ),
    Exclusion(
        &[Hold],
        Value(Scope, "process"),
        "`hold` has no effect with `scope = \"process\"`: this process knows when its calls have ended. Remove one of \
         the two",
    ),
    Exclusion(
        &[OnError, Lease],
        Value(Scope, "process"),
        "`{name}` has no effect with `scope = \"process\"`, which does not use Redis: remove one of the two",
    ),
    Exclusion(
        &[Wait],
        Value(Shadow, "true"),
        "`wait` has no effect with `shadow = true`, which rejects no call: remove one of the two",
    ),
    Exclusion(
        &[Lease],
        Given(Wait),
        "`lease` cannot be combined with `wait`, because leased units would be spent out of turn: remove one of \
         the two",
    ),
    Exclusion(
        &[Lease],
        Given(Block),
        "`block` cannot be combined with `lease`: a call that spends leased units has no permit that could block the \
         key. Remove one of the two, or block the key in the body, with `RateLimiter::block`",
    ),
    Exclusion(
        &[Once],
        Given(Wait),
        "`once` cannot be combined with `wait`: a call that was admitted before need not wait, and no call waits for \
         its id. Remove one of the two",
    ),
    Exclusion(&[Once], Given(Lease), CHARGED_ONCE),
    Exclusion(&[Once], Given(Settle), CHARGED_ONCE),
    Exclusion(&[Once], Given(CountIf), CHARGED_ONCE),
    Exclusion(&[Once], Given(Permit), CHARGED_ONCE),
    Exclusion(&[Once], Given(Block), CHARGED_ONCE),
    Exclusion(
        &[Within],
        Without(Once),
        "`within` is how long `once` remembers an id: remove it, or add `once`",
    ),
    Exclusion(&[Lease], Given(Settle), LEASED_UNITS),
    Exclusion(&[Lease], Given(CountIf), LEASED_UNITS),
    Exclusion(&[Lease], Given(Permit), LEASED_UNITS),
    Exclusion(&[CountIf, Permit], Given(Settle), CORRECTED_ONCE),
    Exclusion(&[Permit], Given(CountIf), CORRECTED_ONCE),
    Exclusion(
        &[BlockAtMost],
        Without(Block),
        "`block_at_most` is the ceiling of `block`: remove it, or add `block`",
    ),
];

const CHARGED_ONCE: &str = "`{other}` needs the charge of the call, and a call whose id was admitted before has none: \
                            remove `once` or `{other}`";

const LEASED_UNITS: &str = "`{other}` cannot be combined with `lease`: units that are leased in advance belong to no \
                            call. Remove one of the two";

const CORRECTED_ONCE: &str = "a charge is corrected once: remove `{other}` or `{name}`, or correct it in the body, \
                              with `permit`";

/// Reports the arguments that stand in a wrong place or beside one that excludes them. `attribute` has the arguments
/// beside the groups, or the same as `args`.
pub(crate) fn check(args: &Args<'_>, attribute: &Args<'_>) {
    for name in ArgumentName::ALL {
        let message = misplaced(*name, args).or_else(|| excluded(*name, args, attribute));
        if let Some(message) = message {
            args.reject(*name, &message);
        }
    }
}

/// Returns where to write an argument that stands in a group or beside one.
fn misplaced(name: ArgumentName, args: &Args<'_>) -> Option<String> {
    let is_beside_groups = !args.groups.is_empty();
    match name.place() {
        Place::Attribute if args.is_group => {
            Some(format!("`{name}` applies to all limits: move it out of `limit(…)`"))
        }
        Place::WithoutGroups if (args.is_group || is_beside_groups) && name == Lease => Some(
            "`lease` works with a single limit only, and limits in `limit(…)` are decided together: remove `lease`"
                .to_owned(),
        ),
        Place::WithoutGroups if args.is_group || is_beside_groups => Some(format!(
            "`{name}` works with a single limit: beside `limit(…)`, write `limit(limit = SENT, key = (user_id, \
             request_id))`, with `const SENT: Limit = Limit::once(\"sent\", Duration::from_secs(3600))`"
        )),
        // It would block a key of each group, also the one that all calls share.
        Place::OneLimit if is_beside_groups && name == Block => Some(
            "`block` blocks the key of one limit: move it into the `limit(…)` whose key it blocks"
                .to_owned(),
        ),
        Place::OneLimit if is_beside_groups => {
            Some(format!("`{name}` describes one limit: move it into `limit(…)`"))
        }
        _ => None,
    }
}

/// Returns why an argument has no place beside the others.
fn excluded(name: ArgumentName, args: &Args<'_>, attribute: &Args<'_>) -> Option<String> {
    let of = |other: ArgumentName| match other.place() {
        Place::Attribute => attribute,
        _ => args,
    };
    EXCLUSIONS.iter().filter(|Exclusion(names, ..)| names.contains(&name)).find_map(
        |Exclusion(_, beside, message)| {
            let (other, applies) = match *beside {
                Given(other) => (other, of(other).get(other).is_some()),
                Path(other) => (other, of(other).is_path(other)),
                Value(other, word) => (other, of(other).is_word(other, word)),
                Without(other) => (other, args.get(other).is_none() && !args.is_misspelled(other)),
            };
            let message = message.replace("{name}", name.as_str());
            applies.then(|| message.replace("{other}", other.as_str()))
        },
    )
}

#[cfg(test)]
mod tests {
    use super::{ArgumentName, Beside, EXCLUSIONS, Exclusion, InFlight, Lease, Word};

    /// Returns whether one of the two, or what it needs, excludes the other.
    fn exclude(one: ArgumentName, other: ArgumentName) -> bool {
        let by_row = |a: ArgumentName, b: ArgumentName| {
            EXCLUSIONS.iter().any(|Exclusion(names, beside, _)| {
                names.contains(&a)
                    && matches!(beside, Beside::Given(it) | Beside::Path(it) if *it == b)
            })
        };
        let needs = EXCLUSIONS.iter().find_map(|Exclusion(names, beside, _)| match beside {
            Beside::Without(needed) if names.contains(&one) => Some(*needed),
            _ => None,
        });
        one == other
            || by_row(one, other)
            || by_row(other, one)
            || needs.is_some_and(|needed| needed != other && exclude(needed, other))
    }

    #[test]
    fn the_documented_table_says_what_stands_beside_what() {
        let docs = include_str!("../docs/rate_limit.md");
        for name in ArgumentName::ALL.iter().copied() {
            let start = format!("| [`{}`]", name.as_str());
            let row = docs.lines().find(|line| line.starts_with(&start)).expect("a row");
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            let written = [4, 3, 2].map(|from_end| cells[cells.len() - from_end] == "yes");
            let has_lease = name.place() != super::Place::WithoutGroups && !exclude(name, Lease);
            let expected = [name.place().is_in_groups(), has_lease, !exclude(name, InFlight)];
            assert_eq!(written, expected, "{row}");
        }
    }
}
