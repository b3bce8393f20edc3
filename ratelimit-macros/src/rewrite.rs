//! The whole way from the tokens of an attribute and its function to the tokens of the limited
//! function.

use proc_macro2::TokenStream;
use quote::quote;

use crate::args::Args;
use crate::argument::ArgumentName;
use crate::diagnostics::Errors;
use crate::expand::expand;
use crate::function::Function;
use crate::guard::Guard;

pub(crate) fn rewrite(arguments: &TokenStream, item: &TokenStream) -> TokenStream {
    let errors = Errors::default();
    let args = Args::parse(arguments.clone(), &errors);
    let function = errors.record(syn::parse2::<Function>(item.clone()));
    if let Ok(function) = &function {
        function.require_one_attribute(&errors);
    }
    let guard = Guard::validate(&args, function.as_ref().ok());
    let may_block = args.get(ArgumentName::Scope).is_some();
    let function = function.and_then(|function| function.require_async(may_block, &errors));
    match errors.finish(function.and_then(|function| Ok((function, guard?)))) {
        Ok((function, guard)) => expand(&function, &guard, arguments),
        // The function stays, so that its callers do not fail to compile as well.
        Err(compile_errors) => quote!(#item #compile_errors),
    }
}
