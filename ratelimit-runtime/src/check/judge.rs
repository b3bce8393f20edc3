//! Converts the reply of a store to the result of a check: picks the limit that the result reports, and determines
//! whether the call is rejected.

use crate::algorithm::{Outcome, Verdict};
use crate::limit::LimitLabel;
use crate::reply::{Decision, Rejection, Source, StoreError};
use crate::report::{self, PartEnd, Report};

/// The outcomes of a call, and where they were decided.
pub(super) type Outcomes<'a> = (&'a [Outcome], Source);

/// Returns the index of the limit that the result reports, and the result before a shadow admits the call. `labels` are
/// in the order of the outcomes, and not empty.
pub(super) fn judge(
    labels: &[LimitLabel],
    reply: Result<Outcomes<'_>, StoreError>,
) -> (usize, Result<Decision, Rejection>) {
    match reply {
        Ok((outcomes, source)) => {
            let index = hardest(outcomes);
            (index, result_of(&labels[index], &outcomes[index], source))
        }
        Err(error) => (0, Err(Rejection::unavailable_by(&labels[0], error))),
    }
}

/// Returns the result of one limit before a shadow admits the call.
fn result_of(label: &LimitLabel, outcome: &Outcome, source: Source) -> Result<Decision, Rejection> {
    let decision = Decision::new(label.capacity, outcome, source);
    let (name, quota) = (|| label.name, label.quota);
    match outcome.verdict {
        Verdict::Admitted => Ok(decision),
        Verdict::Rejected if quota.is_in_flight() => Err(Rejection::busy_by(label, decision)),
        Verdict::Rejected => Err(Rejection::Limited { name: name(), quota, decision }),
        Verdict::Blocked { .. } => Err(Rejection::Blocked { name: name(), quota, decision }),
    }
}

/// Records the limits that the result does not report: metrics and the log of a web request have each limit. Without a
/// `reply`, none has decided.
pub(super) fn record_others(report: &Report, labels: &[LimitLabel], reply: Option<Outcomes<'_>>) {
    if labels.len() == 1 || !report::is_recorded() {
        return;
    }
    let spoken = reply.map_or(0, |(outcomes, _)| hardest(outcomes));
    for (index, label) in labels.iter().enumerate().filter(|(index, _)| *index != spoken) {
        let Some((outcomes, source)) = reply else {
            report.count_part(label, PartEnd::Undecided);
            continue;
        };
        let end = part_end(label, &outcomes[index], outcomes[spoken].is_allowed(), source);
        report.count_part(label, end);
        report::log_part(label, &Decision::new(label.capacity, &outcomes[index], source));
    }
}

/// Returns how a check has ended for a limit that it does not report.
fn part_end(label: &LimitLabel, outcome: &Outcome, is_admitted: bool, source: Source) -> PartEnd {
    match outcome.verdict {
        Verdict::Blocked { .. } => PartEnd::Blocked(source),
        Verdict::Rejected if label.quota.is_in_flight() => PartEnd::Busy(source),
        Verdict::Rejected => PartEnd::Rejecting(source),
        Verdict::Admitted if is_admitted => PartEnd::Charged(source),
        Verdict::Admitted => PartEnd::NotCharged(source),
    }
}

/// Returns the index of the outcome that is hardest on the caller: the rejection with the longest wait; without a
/// rejection, the outcome with the fewest remaining units; of equal outcomes, the first.
pub(super) fn hardest(outcomes: &[Outcome]) -> usize {
    let is_harder = |one: &Outcome, other: &Outcome| {
        let allowed = one.is_allowed();
        if allowed != other.is_allowed() {
            !allowed
        } else if one.retry_us != other.retry_us {
            one.retry_us > other.retry_us
        } else {
            allowed && one.remaining < other.remaining
        }
    };
    let mut hardest = 0;
    for (index, outcome) in outcomes.iter().enumerate().skip(1) {
        if is_harder(outcome, &outcomes[hardest]) {
            hardest = index;
        }
    }
    hardest
}

/// Returns the result that the caller receives: a shadow admits every call.
pub(super) fn apply_shadow(
    label: &LimitLabel,
    result: Result<Decision, Rejection>,
) -> Result<Decision, Rejection> {
    match result {
        Err(rejection) if !label.shadow => Err(rejection),
        Ok(decision)
        | Err(
            Rejection::Limited { decision, .. }
            | Rejection::Blocked { decision, .. }
            | Rejection::Busy { decision, .. },
        ) => Ok(decision),
        Err(Rejection::CostExceedsCapacity { capacity, .. }) => {
            Ok(Decision::cost_exceeds(capacity))
        }
        Err(Rejection::Unavailable { .. } | Rejection::Mistake { .. }) => {
            Ok(Decision::undecided(label.capacity))
        }
    }
}
