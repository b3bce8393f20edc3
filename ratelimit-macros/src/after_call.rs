//! What happens once a call has ended: its charge is corrected, by its result or by hand, and its key is blocked.

use std::mem;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Expr, FnArg, Ident, Lit, Pat, PatIdent, PatType, Type, TypePath};

use crate::args::Args;
use crate::argument::ArgumentName;
use crate::function::Function;
use crate::values::{Value, as_literal, as_path, unwrap_parens};

/// What happens once the call has ended.
#[derive(Clone)]
pub(crate) struct AfterCall {
    /// How the charge is corrected.
    pub(crate) correction: Option<Correction>,
    /// Whether and for how long the key is blocked.
    pub(crate) block: Option<KeyBlock>,
    /// Whether the call holds its units until it ends.
    pub(crate) holds: bool,
}

/// The block of a key, by the return value.
#[derive(Clone)]
pub(crate) struct KeyBlock {
    /// A function of the return value that returns for how long the key is blocked, if it is.
    pub(crate) function: Expr,
    /// The longest time; `None` for that of the runtime.
    pub(crate) at_most: Option<Value>,
}

#[derive(Clone)]
pub(crate) enum Correction {
    /// A function of the return value that returns the units that the call has used.
    Settle(Expr),
    /// A function of the return value that returns whether the call counts.
    CountIf(Expr),
    /// The variable with which the body corrects the charge.
    Permit(Ident),
}

impl AfterCall {
    pub(crate) fn read(args: &Args<'_>, function: Option<&Function>) -> Self {
        let read = |name| {
            args.optional(name, |name, expr| {
                let function_of_result = read_function(name, function, expr)?;
                if let Some(function) = function {
                    require_no_moved(name, function, expr)?;
                    function.require_no_track_caller(&format!("`{name}`"), &in_the_body(name))?;
                }
                Ok(function_of_result)
            })
        };
        let settle = read(ArgumentName::Settle).map(Correction::Settle);
        let count_if = read(ArgumentName::CountIf).map(Correction::CountIf);
        let permit = args.optional(ArgumentName::Permit, |_, expr| {
            let bindings = function.map(Function::bindings).unwrap_or_default();
            read_permit(expr, &bindings)
        });
        let block = read(ArgumentName::Block);
        let at_most = args.optional(ArgumentName::BlockAtMost, Value::duration);
        let correction = settle.or(count_if).or(permit.map(Correction::Permit));
        let block = block.map(|function| KeyBlock { function, at_most });
        Self { correction, block, holds: false }
    }

    /// Takes the correction of `shared` if it has none. Units that are held have nothing to correct.
    pub(crate) fn inherit(&mut self, shared: &Self) {
        if self.correction.is_none() && !self.holds {
            self.correction.clone_from(&shared.correction);
        }
    }

    /// Whether nothing happens.
    pub(crate) fn is_empty(&self) -> bool {
        self.correction.is_none() && self.block.is_none() && !self.holds
    }

    /// Whether the call keeps a permit while its body runs, and no function takes it after the body.
    pub(crate) fn keeps_permit(&self) -> bool {
        self.holds || matches!(self.correction, Some(Correction::Permit(_)))
    }

    /// Whether a function looks at the return value.
    pub(crate) fn sees_result(&self) -> bool {
        self.block.is_some()
            || matches!(self.correction, Some(Correction::Settle(_) | Correction::CountIf(_)))
    }
}

/// Reads a function of the return value.
fn read_function(
    name: ArgumentName,
    function: Option<&Function>,
    expr: &Expr,
) -> syn::Result<Expr> {
    let hides = function.is_some_and(Function::returns_impl_trait);
    let in_the_body = in_the_body(name);
    let message = match unwrap_parens(expr) {
        Expr::Path(_) | Expr::Closure(_) if hides => format!(
            "`{name}` looks at the return value, whose type `impl Trait` hides: return a named type, or \
             {in_the_body}"
        ),
        Expr::Closure(closure)
            if closure.asyncness.is_some() || matches!(*closure.body, Expr::Async(_)) =>
        {
            format!("the result of `{name}` is not awaited: remove `async`, or {in_the_body}")
        }
        Expr::Path(_) | Expr::Closure(_) => return Ok(expr.clone()),
        other => {
            let hint = match as_literal(other) {
                Some((_, Lit::Int(_))) if name == ArgumentName::Settle => {
                    ": for a cost that is known before the call, write `cost`"
                }
                Some(_) if name == ArgumentName::Block => {
                    ". It returns for how long the key is blocked, as an `Option<Duration>`"
                }
                _ => "",
            };
            format!(
                "`{name}` must be a function or a closure that takes a reference to the return value, \
                 such as `{}`{hint}",
                name.example()
            )
        }
    };
    Err(syn::Error::new_spanned(expr, message))
}

/// What to write in the body instead.
fn in_the_body(name: ArgumentName) -> String {
    match name {
        ArgumentName::Block => "block the key in the body, with `RateLimiter::block`".to_owned(),
        _ => {
            format!("correct the charge in the body, with `{}`", ArgumentName::Permit.example())
        }
    }
}

/// Types of the standard library that cannot be copied. The compiler reports arguments of other types, in its words.
const OWNED: [&str; 10] =
    ["String", "Vec", "Box", "Arc", "Rc", "PathBuf", "HashMap", "HashSet", "BTreeMap", "BTreeSet"];

/// Rejects a closure that uses an argument which the body owns: the argument is gone once there is a return value.
fn require_no_moved(name: ArgumentName, function: &Function, expr: &Expr) -> syn::Result<()> {
    let Expr::Closure(closure) = unwrap_parens(expr) else { return Ok(()) };
    for input in &function.sig.inputs {
        if let FnArg::Typed(PatType { pat, ty, .. }) = input
            && let Pat::Ident(PatIdent { ident, .. }) = &**pat
            && let Type::Path(TypePath { path, .. }) = &**ty
            && path.segments.last().is_some_and(|last| OWNED.iter().any(|it| last.ident == it))
            && let Some(used) = find(closure.body.to_token_stream(), ident)
        {
            let message = format!(
                "the body owns `{used}`, and `{name}` sees the return value only: return what it needs, or \
                 {}",
                in_the_body(name)
            );
            return Err(syn::Error::new(used.span(), message));
        }
    }
    Ok(())
}

/// Finds a variable in an expression: a word that is no field or method.
fn find(tokens: TokenStream, variable: &Ident) -> Option<Ident> {
    let mut is_field = false;
    tokens.into_iter().find_map(|tree| {
        let was_field = mem::take(&mut is_field);
        match tree {
            TokenTree::Ident(word) if word == *variable && !was_field => Some(word),
            TokenTree::Group(group) => find(group.stream(), variable),
            TokenTree::Punct(punct) => {
                is_field = punct.as_char() == '.';
                None
            }
            TokenTree::Ident(_) | TokenTree::Literal(_) => None,
        }
    })
}

/// `bindings` are the names of the arguments, which the variable would shadow.
fn read_permit(expr: &Expr, bindings: &[Ident]) -> syn::Result<Ident> {
    let ident = as_path(expr).and_then(|path| path.path.get_ident());
    let message = match ident {
        Some(ident) if ident != "self" && bindings.contains(ident) => {
            format!(
                "the function has an argument `{ident}`, which the variable of `permit` would hide: choose \
                 another name"
            )
        }
        Some(ident) if ident != "self" => return Ok(ident.clone()),
        _ => format!(
            "`permit` must be the name of a variable, with which the body corrects the charge, such as \
             `{}`",
            ArgumentName::Permit.example()
        ),
    };
    Err(syn::Error::new_spanned(expr, message))
}
