//! Enums whose variants the user writes as words: arguments, algorithms, policies.

/// A fixed set of words, one for each variant. [`word_enum!`] implements it.
pub(crate) trait Word: Copy + 'static {
    /// Every variant, in the order in which they are documented.
    const ALL: &'static [Self];

    /// The word in the attribute.
    fn as_str(self) -> &'static str;

    /// What other rate limiters write instead.
    fn synonyms(self) -> &'static [&'static str];

    /// The variant that is written as `word`.
    fn find(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|known| known.as_str() == word)
    }

    /// The variant that other rate limiters call `word`.
    fn find_synonym(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|known| known.synonyms().contains(&word))
    }
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
        }
    };
}

pub(crate) use word_enum;
