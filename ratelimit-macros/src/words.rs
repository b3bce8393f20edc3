//! Enums whose variants the user writes as words: arguments, algorithms, policies.

use syn::Expr;

use crate::argument::ArgumentName;
use crate::diagnostics::quoted;
use crate::text::closest::closest;
use crate::values;

/// A fixed set of words, one for each variant. [`word_enum!`] implements it.
pub(crate) trait Word: Copy + 'static {
    /// Every variant, in the order in which they are documented.
    const ALL: &'static [Self];

    /// The word in the attribute.
    fn as_str(self) -> &'static str;

    /// What other rate limiters write instead.
    fn synonyms(self) -> &'static [&'static str];

    /// The variant that other rate limiters call `word`.
    fn find_synonym(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|known| known.synonyms().contains(&word))
    }

    /// The name of the variant in Rust. The enum of the runtime, if there is one, has the same.
    fn variant(self) -> &'static str;
}

/// Declares an enum and the words of its variants in one table, so that neither can lack the other. After `|` are the
/// words of other rate limiters, which an error replaces.
macro_rules! word_enum {
    ($(#[$meta:meta])* $name:ident {
        $($(#[$doc:meta])* $variant:ident = $word:literal $(| $synonym:literal)*,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name {
            $($(#[$doc])* $variant,)*
        }

        impl $crate::words::Word for $name {
            const ALL: &'static [Self] = &[$(Self::$variant),*];

            fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }

            fn synonyms(self) -> &'static [&'static str] {
                match self {
                    $(Self::$variant => &[$($synonym),*],)*
                }
            }

            fn variant(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($variant),)*
                }
            }
        }
    };
}

pub(crate) use word_enum;

/// Reads one of the words of `T`, as a string literal. `kind` says what the words are.
pub(crate) fn choice<T: Word>(argument: ArgumentName, kind: &str, expr: &Expr) -> syn::Result<T> {
    let text = values::text(argument, expr)?;
    let word = text.value();
    if let Some(choice) = T::ALL.iter().find(|choice| choice.as_str() == word) {
        return Ok(*choice);
    }
    let words = || T::ALL.iter().map(|choice| choice.as_str());
    let normalized = word.to_lowercase().replace(['-', ' '], "_");
    let hint = if let Some(meant) = T::find_synonym(&normalized) {
        format!("did you mean `\"{}\"`?", meant.as_str())
    } else if let Some(meant) = closest(&normalized, words()) {
        format!("did you mean `\"{meant}\"`?")
    } else {
        let literals: Vec<_> = words().map(|word| format!("\"{word}\"")).collect();
        format!("`{argument}` is one of {}", quoted(literals.iter().map(String::as_str)))
    };
    Err(syn::Error::new(text.span(), format!("unknown {kind} `{word}`: {hint}")))
}
