//! States of models whose parts cannot be copied: each is built again from the steps that lead to it.

use std::hash::{Hash, Hasher};

/// The steps that lead to a state, and what follows from them. States with the same parts are the same.
#[derive(Clone, Debug)]
pub struct Replayed<A> {
    pub(crate) steps: Vec<A>,
    /// All parts of the state.
    pub(crate) parts: String,
    pub(crate) enabled: Vec<A>,
    /// What is wrong with the state.
    pub(crate) mistakes: Vec<&'static str>,
}

impl<A: Copy> Replayed<A> {
    /// Returns the steps that lead to the state after `step`.
    pub(crate) fn steps_with(&self, step: A) -> Vec<A> {
        let mut steps = self.steps.clone();
        steps.push(step);
        steps
    }

    pub(crate) fn is_free_of(&self, mistake: &str) -> bool {
        !self.mistakes.contains(&mistake)
    }
}

impl<A> PartialEq for Replayed<A> {
    fn eq(&self, other: &Self) -> bool {
        self.parts == other.parts
    }
}

impl<A> Hash for Replayed<A> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts.hash(state);
    }
}
