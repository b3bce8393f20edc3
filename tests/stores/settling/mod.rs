//! Charges that are corrected once the real cost is known, and units that go back to their charge.

mod lagging_clocks;
mod permits;
mod queue;
mod settlements;
