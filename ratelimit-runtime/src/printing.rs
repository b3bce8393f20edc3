//! How errors and types with private fields are printed.

/// Implements `Error` and `Debug` by the text of an error, because a `main` that returns an error prints its `Debug`.
macro_rules! error_by_text {
    ($($error:ty),+) => {$(
        impl std::error::Error for $error {}

        impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    )+};
}

/// As [`error_by_text`], with a text for each case, which can show the fields of the case and the values that follow.
macro_rules! texts {
    ($error:ident {
        $($case:ident $({ $($field:ident),+ })? $(($inner:ident))? => $text:literal $(, $value:expr)*;)+
    }) => {
        impl std::fmt::Display for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $(Self::$case $({ $($field),+ })? $(($inner))? => write!(f, $text $(, $value)*),)+
                }
            }
        }

        $crate::printing::error_by_text!($error);
    };
}

/// As [`error_by_text`], for an error that contains its text.
macro_rules! error_of_text {
    ($error:ty) => {
        impl std::fmt::Display for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        $crate::printing::error_by_text!($error);
    };
}

/// Implements `Debug` of types by their name alone.
macro_rules! debug_by_name {
    ($($name:literal [$($parameter:tt)*] $type:ty),+) => {$(
        impl<$($parameter)*> std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct($name).finish_non_exhaustive()
            }
        }
    )+};
}

pub(crate) use {debug_by_name, error_by_text, error_of_text, texts};
