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

/// Declares annotated functions: the arguments of the attribute, and the function. Without a body, it returns `Ok(())`.
macro_rules! limited {
    () => {};
    (($($argument:tt)*) $($word:ident)+($($parameter:tt)*); $($rest:tt)*) => {
        #[ratelimit_runtime::rate_limit($($argument)*)]
        $($word)+($($parameter)*) -> Result<(), ratelimit_runtime::Rejection> {
            Ok(())
        }

        limited! { $($rest)* }
    };
    (($($argument:tt)*) $($word:ident)+($($parameter:tt)*) -> $output:ty $body:block $($rest:tt)*) => {
        #[ratelimit_runtime::rate_limit($($argument)*)]
        $($word)+($($parameter)*) -> $output $body

        limited! { $($rest)* }
    };
}

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
