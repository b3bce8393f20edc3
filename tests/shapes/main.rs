//! The attribute on functions of every shape: they compile, the limit holds, and the function does not change
//! otherwise. And its wrong arguments, with their errors.

#![allow(
    clippy::items_after_statements,
    clippy::let_and_return,
    clippy::map_identity,
    clippy::needless_pass_by_value,
    clippy::unused_async,
    reason = "users write functions like these"
)]

mod algorithms;
mod amounts;
mod blocks;
mod corrections;
mod counted;
mod forbidden;
mod functions;
mod future_size;
mod hygiene;
mod in_flight;
mod keys;
mod limits;
mod lower_case_items;
mod mistakes;
mod once;
mod policies;
mod returns;
mod send;
