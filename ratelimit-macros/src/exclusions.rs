//! Which arguments exclude each other. The error points at the argument that has no effect.

use crate::args::Args;
#[allow(clippy::enum_glob_use, reason = "the reasons name most of them")]
use crate::argument::ArgumentName::{self, *};
use crate::argument::Place;
use crate::words::Word;

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

/// Returns why an argument has no place beside the others, and what to write instead: the first reason that applies.
fn excluded(name: ArgumentName, args: &Args<'_>, attribute: &Args<'_>) -> Option<String> {
    let beside = |other: &ArgumentName| match other.place() {
        Place::Attribute => attribute.get(*other).is_some(),
        _ => args.get(*other).is_some(),
    };
    let without = |other| args.get(other).is_none() && !args.is_misspelled(other);
    let is_in_process = attribute.is_word(Scope, "process");
    // Each of these arguments excludes this one, for the same reason.
    let others: &[_] = match name {
        Once => &[Lease, Settle, CountIf, Permit, Block],
        Lease => &[Settle, CountIf, Permit],
        Permit => &[Settle, CountIf],
        CountIf => &[Settle],
        _ => &[],
    };
    let other = others.iter().find(|other| beside(other));
    let message = match name {
        // Leased units can be counted elsewhere, where code that names the constant would not find them.
        Period | Algo | Align | AlignDay | InFlight | Hold | Name | Lease
            if args.is_path(Limit) =>
        {
            "`{name}` is part of the limit that `limit` names: remove it, or change the constant"
        }
        Period if beside(&InFlight) => {
            "`in_flight` limits how many calls run at the same time, and has no `period`: how long a slot is kept is \
             `hold`; for a rate beside it, write two groups, `limit(period = .., threshold = ..), limit(in_flight = \
             .., hold = ..)`"
        }
        Threshold | Algo | Burst | Align | AlignDay if beside(&InFlight) => {
            "`in_flight` limits how many calls run at the same time, and has no `{name}`: for a rate beside it, write \
             two groups, `limit(period = .., threshold = ..), limit(in_flight = .., hold = ..)`"
        }
        Lease if beside(&InFlight) => {
            "`in_flight` limits how many calls run at the same time, and has no `lease`: remove `lease`"
        }
        Settle | CountIf if beside(&InFlight) => {
            "`{name}` corrects the charge of a rate, and a slot is free as soon as its call has ended: remove \
             `{name}`, or move it to a rate beside this limit"
        }
        Once if args.is_path(Limit) => {
            "`once` needs a limit that is written here: write `period` and `threshold`, or two groups, `limit(limit = \
             SENT, key = (user_id, request_id)), limit(limit = LOGIN, key = user_id)`, with `const SENT: Limit = \
             Limit::once(\"sent\", Duration::from_secs(3600))`"
        }
        Once if beside(&InFlight) => {
            "`in_flight` limits how many calls run at the same time, also those that were sent before: remove `once`"
        }
        Hold if without(InFlight) => {
            "`hold` is for calls in flight, whose slots Redis keeps for so long after a process was killed: remove \
             `hold`, or add `in_flight`"
        }
        Hold if is_in_process => {
            "`hold` has no effect with `scope = \"process\"`: this process knows when its calls have ended. Remove \
             one of the two"
        }
        OnError | Lease if is_in_process => {
            "`{name}` has no effect with `scope = \"process\"`, which does not use Redis: remove one of the two"
        }
        Wait if attribute.is_word(Shadow, "true") => {
            "`wait` has no effect with `shadow = true`, which rejects no call: remove one of the two"
        }
        Lease if beside(&Wait) => {
            "`lease` cannot be combined with `wait`, because leased units would be spent out of turn: remove one of \
             the two"
        }
        Lease if beside(&Block) => {
            "`block` cannot be combined with `lease`: a call that spends leased units has no permit that could block \
             the key. Remove one of the two, or block the key in the body, with `RateLimiter::block`"
        }
        Once if beside(&Wait) => {
            "`once` cannot be combined with `wait`: a call that was admitted before need not wait, and no call waits \
             for its id. Remove one of the two"
        }
        Once if other.is_some() => {
            "`{other}` needs the charge of the call, and a call whose id was admitted before has none: remove `once` \
             or `{other}`"
        }
        Within if without(Once) => {
            "`within` is how long `once` remembers an id: remove it, or add `once`"
        }
        Lease if other.is_some() => {
            "`{other}` cannot be combined with `lease`: units that are leased in advance belong to no call. Remove one \
             of the two"
        }
        CountIf | Permit if other.is_some() => {
            "a charge is corrected once: remove `{other}` or `{name}`, or correct it in the body, with `permit`"
        }
        BlockAtMost if without(Block) => {
            "`block_at_most` is the ceiling of `block`: remove it, or add `block`"
        }
        _ => return None,
    };
    let message = message.replace("{name}", name.as_str());
    Some(message.replace("{other}", other.map_or("", |other| other.as_str())))
}

#[cfg(test)]
mod tests {
    use proc_macro2::TokenStream;

    use super::{Args, ArgumentName, Block, BlockAtMost, InFlight, Lease, Once, Within, Word};
    use crate::diagnostics::Errors;

    /// Returns whether one of the two, or what it needs, excludes the other.
    fn exclude(one: ArgumentName, other: ArgumentName) -> bool {
        let needed = match one {
            BlockAtMost => Block,
            Within => Once,
            _ => one,
        };
        let mut names = vec![one, needed, other];
        names.dedup();
        let text = |name: &ArgumentName| match name {
            // The other word excludes what needs Redis.
            ArgumentName::Scope => "scope = \"global\"",
            _ => name.example(),
        };
        let texts: Vec<_> = names.iter().map(text).collect();
        let tokens: TokenStream = texts.join(", ").parse().expect("tokens");
        let errors = Errors::default();
        let args = Args::parse(tokens, &errors);
        one == other || names.iter().any(|name| super::excluded(*name, &args, &args).is_some())
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
