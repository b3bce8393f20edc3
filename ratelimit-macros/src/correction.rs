//! How a charge is corrected once the call has ended: by its result, or by hand.

use std::mem;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Expr, FnArg, Ident, Lit, Pat, PatIdent, PatType, Type, TypePath};

use crate::args::Args;
use crate::argument::ArgumentName;
use crate::diagnostics::ReportedError;
use crate::function::Function;
use crate::values::{as_literal, as_path, unwrap_parens};

pub(crate) enum Correction {
    /// A function of the return value that returns the units that the call has used.
    Settle(Expr),
    /// A function of the return value that returns whether the call counts.
    CountIf(Expr),
    /// The variable with which the body corrects the charge.
    Permit(Ident),
}

/// The arguments that correct a charge. A charge has one of them.
const NAMES: [ArgumentName; 3] =
    [ArgumentName::Settle, ArgumentName::CountIf, ArgumentName::Permit];

impl Correction {
    pub(crate) fn validate(
        args: &Args<'_>,
        function: Option<&Function>,
    ) -> Result<Option<Self>, ReportedError> {
        let given: Vec<_> = NAMES.into_iter().filter(|name| args.get(*name).is_some()).collect();
        if let [first, second, ..] = given[..] {
            let message = format!(
                "a charge is corrected once: remove `{first}` or `{second}`, or correct it in the body, \
                 with `permit`"
            );
            args.reject(second, &message);
        }
        for name in &given {
            let message = format!(
                "`{name}` cannot be combined with `lease`: units that are leased in advance belong to no \
                 call. Remove one of the two"
            );
            args.reject(ArgumentName::Lease, &message);
        }
        let read = |name, expr: &Expr| {
            let function_of_result = read_function(name, function, expr)?;
            function.map_or(Ok(()), |function| require_no_moved(name, function, expr))?;
            Ok(function_of_result)
        };
        let settle = |expr: &Expr| read(ArgumentName::Settle, expr).map(Self::Settle);
        let count_if = |expr: &Expr| read(ArgumentName::CountIf, expr).map(Self::CountIf);
        let settle = args.optional(ArgumentName::Settle, settle);
        let count_if = args.optional(ArgumentName::CountIf, count_if);
        let permit =
            args.optional(ArgumentName::Permit, |expr| read_permit(expr).map(Self::Permit));
        settle.or(count_if).or(permit).transpose()
    }

    /// Whether the correction looks at the return value.
    pub(crate) fn sees_result(&self) -> bool {
        match self {
            Self::Settle(_) | Self::CountIf(_) => true,
            Self::Permit(_) => false,
        }
    }
}

/// Reads a function of the return value.
fn read_function(
    name: ArgumentName,
    function: Option<&Function>,
    expr: &Expr,
) -> syn::Result<Expr> {
    let hides = function.is_some_and(Function::returns_impl_trait);
    let message = match unwrap_parens(expr) {
        Expr::Path(_) | Expr::Closure(_) if hides => format!(
            "`{name}` looks at the return value, whose type `impl Trait` hides: return a named type, or \
             correct the charge in the body, with `{}`",
            ArgumentName::Permit.example()
        ),
        Expr::Closure(closure)
            if closure.asyncness.is_some() || matches!(*closure.body, Expr::Async(_)) =>
        {
            format!(
                "the result of `{name}` is not awaited: remove `async`, or correct the charge in the \
                 body, with `{}`",
                ArgumentName::Permit.example()
            )
        }
        Expr::Path(_) | Expr::Closure(_) => return Ok(expr.clone()),
        other => {
            let hint = match as_literal(other) {
                Some((_, Lit::Int(_))) if name == ArgumentName::Settle => {
                    ": for a cost that is known before the call, write `cost`"
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

/// Types of the standard library that cannot be copied. The compiler reports arguments of other types, in its words.
const OWNED: [&str; 10] =
    ["String", "Vec", "Box", "Arc", "Rc", "PathBuf", "HashMap", "HashSet", "BTreeMap", "BTreeSet"];

/// Rejects a closure that uses an argument which the body owns: the argument is gone once there is a return value.
fn require_no_moved(name: ArgumentName, function: &Function, expr: &Expr) -> syn::Result<()> {
    let Expr::Closure(closure) = unwrap_parens(expr) else { return Ok(()) };
    for input in &function.sig.inputs {
        let FnArg::Typed(PatType { pat, ty, .. }) = input else { continue };
        let (Pat::Ident(PatIdent { ident, .. }), Type::Path(TypePath { path, .. })) =
            (&**pat, &**ty)
        else {
            continue;
        };
        let is_owned =
            path.segments.last().is_some_and(|last| OWNED.iter().any(|it| last.ident == it));
        let used = if is_owned { find(closure.body.to_token_stream(), ident) } else { None };
        if let Some(used) = used {
            let message = format!(
                "the body owns `{used}`, and `{name}` sees the return value only: return what it needs, or \
                 correct the charge in the body, with `{}`",
                ArgumentName::Permit.example()
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

fn read_permit(expr: &Expr) -> syn::Result<Ident> {
    let ident = as_path(expr).and_then(|path| path.path.get_ident());
    let message = match ident {
        Some(ident) if ident != "self" => return Ok(ident.clone()),
        _ => format!(
            "`permit` must be the name of a variable, with which the body corrects the charge, such as \
             `{}`",
            ArgumentName::Permit.example()
        ),
    };
    Err(syn::Error::new_spanned(expr, message))
}
