//! The `#[rate_limit]` attribute. Depend on `ratelimit-runtime`, which re-exports it: what the
//! attribute writes calls that crate.
//!
//! One attribute becomes code in three steps: `Args` and `Function` say what was written, `Guard`
//! what it means, and `expand` writes it.

mod args;
mod boxed;
mod diagnostics;
mod duration;
mod expand;
mod format;
mod function;
mod guard;
mod key;
mod limit;
mod policy;
mod values;

use quote::quote;

use crate::args::Args;
use crate::diagnostics::Errors;
use crate::expand::expand;
use crate::function::Function;
use crate::guard::Guard;

/// Limits how often an async function runs. A call above the limit is refused before the body
/// starts.
///
/// ```text
/// #[rate_limit(period = 30, threshold = 2, key = user_id)]
/// async fn say_hi(user_id: u64) -> Result<String, Rejection>
/// ```
///
/// admits two calls per user in any 30 seconds.
///
/// # Arguments
///
/// | argument | form | meaning |
/// | --- | --- | --- |
/// | `period` | `30`, `0.5`, `"250ms"`, `"1h30m"`, or the path of a `const` of type `Duration` | required; a bare number is seconds; the units are `us`, `ms`, `s`, `m`, `h`, `d` |
/// | `threshold` | an integer, or the path of a `const` of type `u32` | required; the cost admitted per period |
/// | `algo` | `"sliding"`, `"fixed"`, `"sliding_counter"`, `"token_bucket"`, `"leaky_bucket"` | how it is counted; default `"sliding"` |
/// | `burst` | like `threshold` | capacity of a bucket; default: `threshold` for a token bucket, 1 for a leaky one |
/// | `align` | `"utc"`, `"+08:00"`, `"-03:30"` | `"fixed"` windows start at calendar boundaries there; the period divides a day or is whole days |
/// | `key` | an expression, or a format string | what is counted separately; default: all calls together |
/// | `cost` | an expression of type `u32` | what one call takes; default 1 |
/// | `name` | a string literal | the identity of the limit; default `module::path::function` |
/// | `limit(…)` | a group of `period`, `threshold`, `algo`, `burst`, `align`, `key`, `cost`, `name`; any number of them | several limits decided together |
/// | `scope` | `"global"`, `"process"` | who counts together: all who use the store, or this process by itself; default `"global"` |
/// | `on_error` | `"local"`, `"allow"`, `"deny"` | what to do when Redis cannot decide: decide in this process, admit, refuse; default as the limiter was built, there `"local"` |
/// | `shadow` | `true` | decide and count, and never refuse |
/// | `wait` | like `period` | wait up to that long for the permit, first come first served in this process, instead of being refused at once |
/// | `on_limited` | a path or a closure, `FnOnce(Rejection) -> ReturnType` | makes the value that a refused call returns |
/// | `crate` | a path | where the runtime is, if a crate re-exports it; default `::ratelimit_runtime` |
///
/// Paths may depend on the surroundings, as in `threshold = Self::MAX` or `threshold = N` with a
/// const parameter. Literals are checked while the attribute is read, constants behind a path when
/// code is generated for the function.
///
/// # Keys
///
/// An expression may use everything in scope at the start of the function: `user.id`,
/// `(tenant, ip)`, `request.remote_addr()`. It is borrowed, each element of a tuple by itself, so
/// the body still owns its arguments. Its type implements `Key`.
///
/// A format string such as `"{tenant}:{user.id:08x}"` names arguments of the function, or fields of
/// them, of any type that can be formatted. Each argument is delimited in the key: `"{a}:{b}"` keeps
/// `a = "x:y", b = "z"` and `a = "x", b = "y:z"` apart.
///
/// # Names
///
/// Functions whose limits have one name, one algorithm and one period share their counts. The
/// default name is `crate::module::function`, without the type: it does not tell two types in one
/// module apart. If both have a limited method `get`, give each a `name`, as to functions of one name
/// that are nested in others. Give one as well if the counts are to survive that the function is
/// moved or renamed.
///
/// # Several limits
///
/// ```text
/// #[rate_limit(
///     limit(period = "1s", threshold = 10, algo = "token_bucket", key = user),
///     limit(period = "1d", threshold = 5_000, key = tenant),
/// )]
/// ```
///
/// admits a call if all limits do, and charges none if one refuses; that is one decision, atomic on
/// Redis as well. The rejection is that of the limit with the longest wait. A `key` and a `cost`
/// beside the groups go for the limits without their own, and are evaluated once. Each limit counts
/// under the name of the function and its place in the list, `#1`, `#2` and so on: give them names
/// if they may move.
///
/// # What a refused call returns
///
/// What `FromRejection` makes of the `Rejection`: an `Err` if the error is `From<Rejection>`, and
/// `None` for an `Option`. A function that returns anything else says what with `on_limited`.
///
/// A function that returns `impl Trait` hides its type. There, the value is wrapped in a
/// `Result<_, Rejection>`, which has to implement the trait, as it does for the response traits of
/// web frameworks. Not so with `on_limited`: then both return one type, and nothing is wrapped.
///
/// # What becomes of the function
///
/// A check is put in front of the body, which is left as it is, and so are signature, lifetimes,
/// `?`, the order in which arguments are dropped, and whether the future is `Send`. (In a function
/// that returns `impl Trait`, the body moves into an `async move` block: what it uses of the
/// arguments is dropped before the rest.) Key and cost are evaluated first, in that order; the
/// decision is then awaited without holding on to them.
///
/// # Together with other attributes
///
/// Any order works. Attributes above this one wrap the check, attributes below it wrap what the
/// check lets through: under `#[tracing::instrument]`, a refused call has a span; above it, none.
///
/// On a method of an `#[async_trait]`, put it on the method. A parameter that is taken apart by a
/// pattern cannot be part of the key there.
#[proc_macro_attribute]
pub fn rate_limit(
    arguments: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    let errors = Errors::default();
    let args = Args::parse(arguments.into(), &errors);
    let function = errors.note(syn::parse::<Function>(item.clone()));
    if let Ok(function) = &function {
        function.require_one_attribute(&errors);
    }
    let guard = Guard::validate(&args, function.as_ref().ok());
    let function = function.and_then(|function| function.require_async(&errors));
    match errors.conclude(function.and_then(|function| Ok((function, guard?)))) {
        Ok((function, guard)) => expand(&function, &guard).into(),
        // The function stays, so that the callers it has do not turn red as well.
        Err(compile_errors) => {
            let item = proc_macro2::TokenStream::from(item);
            quote!(#item #compile_errors).into()
        }
    }
}
