//! The form of a limit, and the numbers that its function in `lua/` takes: their names, which the texts of the scripts
//! contain, and how they are packed into the arguments that the store sends.

use crate::limit::{Algorithm, Terms};
use crate::store::{Charge, Statement};

/// The form of a limit: the function of `lua/` that decides it, and the arguments that the function takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Sliding,
    Fixed,
    SlidingCounter,
    Bucket,
    /// A bucket of a limit that leases.
    LeasedBucket,
    /// Calls in flight.
    Slots,
}

/// A number of a limit that a function of `lua/` takes. It has 7 bytes, in two's complement.
pub(crate) struct Argument {
    /// The name of the number in the function.
    pub(crate) name: &'static str,
    value: NumberOf,
}

/// Returns a number from the terms of a limit, or from what the process states.
type NumberOf = fn(&Terms, &Statement) -> u64;

const THRESHOLD: Argument = Argument::new("threshold", |terms, _| terms.threshold());
const PERIOD: Argument = Argument::new("period", |terms, _| terms.period_us());
const BURST: Argument = Argument::new("burst", |terms, _| terms.capacity() + terms.lease_reserve());
const TOKEN: Argument = Argument::new("token", |terms, _| terms.rate().token);
const DRAIN: Argument = Argument::new("drain", |terms, _| terms.rate().drain);

impl Argument {
    const fn new(name: &'static str, value: NumberOf) -> Self {
        Self { name, value }
    }
}

impl Form {
    /// All forms, in the order of the lists that `lua/several.lua` reads.
    pub(crate) const EACH: [Self; 6] = [
        Self::Sliding,
        Self::Fixed,
        Self::SlidingCounter,
        Self::Bucket,
        Self::LeasedBucket,
        Self::Slots,
    ];

    /// Returns the form of a limit.
    pub(crate) fn of(terms: &Terms) -> Self {
        match terms.algorithm() {
            Algorithm::Sliding => Self::Sliding,
            Algorithm::Fixed => Self::Fixed,
            Algorithm::InFlight => Self::Slots,
            Algorithm::SlidingCounter => Self::SlidingCounter,
            Algorithm::TokenBucket | Algorithm::LeakyBucket if terms.lease_reserve() > 0 => {
                Self::LeasedBucket
            }
            Algorithm::TokenBucket | Algorithm::LeakyBucket => Self::Bucket,
        }
    }

    /// Returns the index in [`EACH`](Self::EACH).
    pub(crate) fn index(self) -> usize {
        self as usize
    }

    /// Returns the name of the function, and of its file in `lua/`.
    pub(crate) fn function(self) -> &'static str {
        match self {
            Self::Sliding => "sliding",
            Self::Fixed => "fixed",
            Self::SlidingCounter => "sliding_counter",
            Self::Bucket | Self::LeasedBucket => "bucket",
            Self::Slots => "slots",
        }
    }

    /// Returns the last arguments of the function.
    pub(crate) fn arguments(self) -> &'static [Argument] {
        match self {
            Self::Sliding => &[THRESHOLD, PERIOD],
            Self::Fixed => {
                const SHIFT: Argument =
                    Argument::new("shift", |terms, _| terms.shift_us().unwrap_or(u64::MAX));
                &[THRESHOLD, PERIOD, SHIFT]
            }
            Self::SlidingCounter => {
                const GRAIN: Argument = Argument::new("grain", |terms, _| terms.scale().grain);
                const SPAN: Argument = Argument::new("span", |terms, _| terms.scale().span);
                &[THRESHOLD, PERIOD, GRAIN, SPAN]
            }
            Self::Bucket => &[BURST, TOKEN, DRAIN],
            Self::LeasedBucket => {
                const LEASE_TERM: Argument = Argument::new("term", |terms, _| terms.lease_us());
                const RESERVE: Argument =
                    Argument::new("reserve", |terms, _| terms.lease_reserve());
                &[BURST, TOKEN, DRAIN, LEASE_TERM, RESERVE]
            }
            Self::Slots => {
                const HOLD: Argument = Argument::new("hold", |_, stated| stated.hold_us);
                const PROCESS: Argument = Argument::new("process", |_, stated| stated.process);
                const SEQ: Argument = Argument::new("seq", |_, stated| stated.seq);
                const UNITS: Argument = Argument::new("units", |_, stated| stated.units);
                const EPOCH: Argument = Argument::new("epoch", |_, stated| stated.epoch);
                const WAITED: Argument = Argument::new("waited", |_, stated| stated.waited_us);
                &[THRESHOLD, HOLD, PROCESS, SEQ, UNITS, EPOCH, WAITED]
            }
        }
    }

    /// Appends the packed arguments of the limit of a charge.
    pub(crate) fn put_terms(self, out: &mut Vec<u8>, charge: &Charge) {
        let stated = charge.statement.unwrap_or_default();
        for argument in self.arguments() {
            out.extend(&(argument.value)(&charge.terms, &stated).to_be_bytes()[1..]);
        }
    }

    /// Returns the format of the packed arguments for `struct.unpack`.
    pub(crate) fn layout(self) -> String {
        "i7".repeat(self.arguments().len())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::key::KeyId;
    use crate::limit::Limit;

    #[test]
    fn each_form_is_at_its_index() {
        for (index, form) in Form::EACH.into_iter().enumerate() {
            assert_eq!(form.index(), index);
        }
    }

    #[test]
    fn terms_are_packed_as_the_layout_says() {
        let limit = Limit::fixed("terms", 7, Duration::from_secs(1));
        let terms = *limit.terms();
        let key_id = KeyId::new(terms.identity(), 0);
        let charge = Charge { terms, key_id, count_name: Vec::new(), cost: 1, statement: None };
        let (limit, mut out) = (&terms, Vec::new());
        Form::of(limit).put_terms(&mut out, &charge);
        assert_eq!(Form::of(limit).layout(), "i7i7i7");
        assert_eq!(out[..7], [0, 0, 0, 0, 0, 0, 7]);
        assert_eq!(out[7..14], 1_000_000_u64.to_be_bytes()[1..]);
        assert_eq!(out[14..], [255; 7]);
    }
}
