//! What a process states about a count of calls in flight, with each of its calls and by itself.

/// What a process states to the shared store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Statement {
    /// A random number of the process; 0 states nothing.
    pub(crate) process: u64,
    /// A request of a smaller fence than the store knows takes nothing. With a greater one, the store takes the numbers
    /// as they are.
    pub(crate) fence: u64,
    /// The time of the last reset of which the process knows, or 0.
    pub(crate) epoch: u64,
    pub(crate) taken: u64,
    pub(crate) released: u64,
    /// The time until which the store has promised to keep the units, by its clock.
    pub(crate) promised: u64,
    pub(crate) hold_us: u64,
    /// For how long calls of the process have waited while none of them was admitted; 0 before they go first.
    pub(crate) waited_us: u64,
}
