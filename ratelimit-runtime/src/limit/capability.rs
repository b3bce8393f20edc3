//! What a limit names, so that the linker leaves everything else out.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};

/// The functions of a capability, as a value whose type a room above defines. A limit that has the capability refers to
/// them. So a program without such limits does not contain them (`benches/all -- footprint`). All values are equal.
#[derive(Clone, Copy)]
pub(crate) struct Capability(fn() -> &'static (dyn Any + Send + Sync));

impl Capability {
    pub(crate) const fn new(functions: fn() -> &'static (dyn Any + Send + Sync)) -> Self {
        Self(functions)
    }

    /// Returns the functions, whose type is `T`.
    pub(crate) fn functions<T: 'static>(self) -> Option<&'static T> {
        (self.0)().downcast_ref()
    }
}

impl PartialEq for Capability {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Capability {}

impl Hash for Capability {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl fmt::Debug for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}
