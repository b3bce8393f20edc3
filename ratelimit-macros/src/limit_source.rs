//! Where the limit of a charge is written: in the arguments, or in a constant of the user.

use quote::ToTokens;
use syn::{Expr, ExprPath, Lit};

use crate::args::Args;
use crate::argument::{ArgumentName, Place};
use crate::diagnostics::ReportedError;
use crate::in_flight::InFlight;
use crate::limit::{Limit, read_burst, read_threshold};
use crate::values::{Amount, as_literal, as_path, is_constant};
use crate::words::Word;

#[allow(clippy::large_enum_variant, reason = "there are few for each attribute")]
pub(crate) enum LimitSource {
    Arguments(Limit),
    InFlight(InFlight),
    Constant(LimitConstant),
}

/// `limit = PATH`, and the amounts of the call beside it.
pub(crate) struct LimitConstant {
    pub(crate) path: ExprPath,
    pub(crate) threshold: Option<Amount>,
    pub(crate) burst: Option<Amount>,
}

impl LimitSource {
    /// `attribute` has the arguments beside the groups, or the same as `args`.
    pub(crate) fn validate(args: &Args<'_>, attribute: &Args<'_>) -> Result<Self, ReportedError> {
        let Some(path) = args.optional(ArgumentName::Limit, read_path) else {
            return match InFlight::validate(args, attribute) {
                Some(in_flight) => in_flight.map(Self::InFlight),
                None => Limit::validate(args).map(Self::Arguments),
            };
        };
        let path = path?;
        let threshold = args.optional(ArgumentName::Threshold, read_threshold).transpose();
        let burst = args.optional(ArgumentName::Burst, read_burst).transpose();
        let mut is_alone = Ok(());
        for name in ArgumentName::ALL.iter().filter(|name| describes_the_limit(**name)) {
            if let Some(argument) = args.get(*name) {
                let message = format!(
                    "`{name}` is part of the limit that `limit` names: remove it, or change the \
                     constant"
                );
                is_alone = Err(args.errors.report(syn::Error::new_spanned(argument, message)));
            }
        }
        is_alone?;
        Ok(Self::Constant(LimitConstant { path, threshold: threshold?, burst: burst? }))
    }

    /// Whether each call computes the amounts.
    pub(crate) fn varies(&self) -> bool {
        match self {
            Self::Arguments(limit) => limit.varies(),
            Self::InFlight(in_flight) => in_flight.varies(),
            Self::Constant(LimitConstant { threshold, burst, .. }) => {
                threshold.is_some() || burst.is_some()
            }
        }
    }

    /// The largest cost that can be admitted at once, if it is known, and the argument that sets it.
    pub(crate) fn capacity(&self) -> Option<(u32, ArgumentName)> {
        match self {
            Self::Arguments(limit) => limit.capacity(),
            Self::InFlight(InFlight { most, .. }) => Some((most.known()?, ArgumentName::InFlight)),
            Self::Constant(_) => None,
        }
    }
}

/// Whether a constant contains what the argument says.
fn describes_the_limit(name: ArgumentName) -> bool {
    match name {
        ArgumentName::Limit
        // The amounts of the call.
        | ArgumentName::Threshold
        | ArgumentName::Burst
        | ArgumentName::Settle
        | ArgumentName::Permit
        | ArgumentName::Close
        | ArgumentName::CloseAtMost => false,
        // Leased units can be counted elsewhere, where code that names the constant would not find them.
        ArgumentName::Name | ArgumentName::Lease => true,
        other => other.place() == Place::OneLimit,
    }
}

fn read_path(expr: &Expr) -> syn::Result<ExprPath> {
    let hint = match (as_path(expr), as_literal(expr)) {
        (Some(path), _) if is_constant(path) => return Ok(path.clone()),
        (Some(_), _) => {
            ": for a limit that is known only at run time, call `RateLimiter::check`".to_owned()
        }
        (None, Some((_, Lit::Int(number)))) => {
            format!(": for a number of calls, write `threshold = {number}`")
        }
        (None, Some((_, Lit::Str(name)))) => {
            format!(
                ": to name a limit, write `name = {}`; a constant is written without quotes",
                name.to_token_stream()
            )
        }
        (None, _) => String::new(),
    };
    let example = ArgumentName::Limit.example();
    let message =
        format!("`limit` must be the path of a `const` of type `Limit`, such as `{example}`{hint}");
    Err(syn::Error::new_spanned(expr, message))
}
