//! A limit of calls in flight: how many may run at the same time.

use syn::{Expr, LitStr};

use crate::args::Args;
use crate::argument::ArgumentName;
use crate::diagnostics::ReportedError;
use crate::limit::read_name;
use crate::values::{Amount, Constant};

/// The longest hold, as in the runtime.
const LONGEST_HOLD_US: u64 = 86_400_000_000;

/// The shortest hold, as in the runtime.
const SHORTEST_HOLD_US: u64 = 1_000_000;

/// A limit of calls in flight without contradictions.
pub(crate) struct InFlight {
    /// `None`: the path of the function.
    pub(crate) name: Option<LitStr>,
    pub(crate) most: Amount,
    /// How long Redis keeps the units of a process that says nothing; `None`: as the runtime sets it.
    pub(crate) hold: Option<Constant<u64>>,
}

/// The arguments of a rate, which calls in flight do not have.
const OF_RATES: [ArgumentName; 6] = [
    ArgumentName::Period,
    ArgumentName::Threshold,
    ArgumentName::Algo,
    ArgumentName::Burst,
    ArgumentName::Align,
    ArgumentName::Lease,
];

impl InFlight {
    /// `attribute` has the arguments beside the groups, or the same as `args`. Returns `None` if `args` describe a
    /// rate.
    pub(crate) fn validate(
        args: &Args<'_>,
        attribute: &Args<'_>,
    ) -> Option<Result<Self, ReportedError>> {
        let most = args.optional(ArgumentName::InFlight, read_most);
        let Some(most) = most else {
            // A mistake that can be any argument is none of calls in flight.
            if let Some(reported) = args.misspelled(ArgumentName::InFlight)
                && args.misspelled(ArgumentName::Period).is_none()
            {
                return Some(Err(reported));
            }
            let message = "`hold` is for calls in flight, whose slots Redis keeps for so long after a process was \
                           killed: remove `hold`, or add `in_flight`";
            // Beside groups, it is in a wrong place, which is reported.
            if args.groups.is_empty() {
                args.reject(ArgumentName::Hold, message);
            }
            return None;
        };
        for name in OF_RATES {
            args.reject(name, &format!("{}: {}", no_meaning(name), what_to_write(name)));
        }
        let corrections = [ArgumentName::Settle, ArgumentName::CountIf];
        for name in corrections {
            let message = format!(
                "`{name}` corrects the charge of a rate, and a slot is free as soon as its call has ended: remove \
                 `{name}`, or move it to a rate beside this limit"
            );
            args.reject(name, &message);
        }
        let is_of_process = attribute.is_word(ArgumentName::Scope, "process");
        if is_of_process {
            let message = "`hold` has no effect with `scope = \"process\"`: this process knows when its calls have \
                           ended. Remove one of the two";
            args.reject(ArgumentName::Hold, message);
        }
        let hold = args.optional(ArgumentName::Hold, read_hold).transpose();
        let name = args.optional(ArgumentName::Name, read_name).transpose();
        Some(most.and_then(|most| Ok(Self { name: name?, most, hold: hold? })))
    }

    /// Whether each call computes how many may be in flight.
    pub(crate) fn varies(&self) -> bool {
        self.most.is_expression()
    }
}

fn no_meaning(name: ArgumentName) -> String {
    format!("`in_flight` limits how many calls run at the same time, and has no `{name}`")
}

fn what_to_write(name: ArgumentName) -> &'static str {
    match name {
        ArgumentName::Period => {
            "how long a slot is kept is `hold`; for a rate beside it, write two groups, \
             `limit(period = .., threshold = ..), limit(in_flight = .., hold = ..)`"
        }
        ArgumentName::Lease => "remove `lease`",
        _ => {
            "for a rate beside it, write two groups, \
             `limit(period = .., threshold = ..), limit(in_flight = .., hold = ..)`"
        }
    }
}

fn read_most(expr: &Expr) -> syn::Result<Amount> {
    let zero = "`in_flight = 0` would reject every call: the smallest value is 1";
    Amount::read(ArgumentName::InFlight, zero, expr)
}

fn read_hold(expr: &Expr) -> syn::Result<Constant<u64>> {
    let hold = Constant::duration(ArgumentName::Hold, expr)?;
    let message = match hold.known {
        Some(..SHORTEST_HOLD_US) => "`hold` must be at least a second",
        Some(us) if us > LONGEST_HOLD_US => {
            "`hold` must be at most a day: a process that is killed keeps its slots for so long"
        }
        Some(us) if us % 1_000 > 0 => "`hold` must be a whole number of milliseconds",
        _ => return Ok(hold),
    };
    Err(syn::Error::new_spanned(expr, message))
}
