//! The decision of a single call, of calls on one count, and of calls that share a script: algorithms, costs, amounts,
//! policies, several limits.

mod amounts;
mod batches;
mod calendar;
mod once;
mod parity;
mod policies;
mod semantics;
mod several_limits;
