//! The attribute on functions of every shape: they compile, the limit holds, and the function does not
//! change otherwise.

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
mod async_trait;
mod blocks;
mod constants;
mod corrections;
mod cost;
mod counted;
mod crate_path;
mod drop_order;
mod forbidden;
mod format_keys;
mod free_function;
mod future_size;
mod generics;
mod guesses;
mod hygiene;
mod in_flight;
mod key_expressions;
mod limit_constants;
mod limit_texts;
mod limiters;
mod lower_case_items;
mod macro_rules;
mod methods;
mod nested_functions;
mod on_limited;
mod other_attributes;
mod patterns;
mod policies;
mod return_impl_trait;
mod return_types;
mod send;
mod several_limits;
mod synchronous;
mod traits;
