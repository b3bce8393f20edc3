//! Runs models.
#![allow(dead_code, reason = "not each program has such a search")]

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model};

/// Declares tests, each with its checks.
macro_rules! tests {
    ($($(#[$attribute:meta])* $name:ident: $($check:expr),+;)+) => {
        $($(#[$attribute])* #[test] fn $name() { $($check;)+ })+
    };
}

/// A model that can be searched.
pub trait Searched:
    Model<State: Debug + Hash + PartialEq + Clone + Send + Sync, Action: Clone + Debug + PartialEq>
    + Send
    + Sync
    + Debug
    + 'static
{
}

impl<M> Searched for M where
    M: Model<
            State: Debug + Hash + PartialEq + Clone + Send + Sync,
            Action: Clone + Debug + PartialEq,
        > + Send
        + Sync
        + Debug
        + 'static
{
}

/// Asserts that all properties hold in every state.
pub fn holds<M: Searched>(model: M) {
    let checker = visited(model, HasDiscoveries::AnyFailures);
    println!("{} states, of which {} differ", checker.state_count(), checker.unique_state_count());
    if let Some((property, path)) = checker.discoveries().into_iter().next() {
        let state = path.last_state().clone();
        panic!("not {property}: {:?}\n{state:?}", path.into_actions());
    }
    assert!(checker.is_done(), "every state was visited");
}

/// Asserts it if the searches that take minutes run as well.
pub fn holds_if_long<M: Searched>(model: M) {
    if cfg!(feature = "long") {
        holds(model);
    }
}

/// Asserts that a model with a fault has a counterexample of a property.
pub fn is_found<M: Searched>(model: M, property: &'static str) {
    let is_found = HasDiscoveries::AllOf([property].into());
    let path = visited(model, is_found).discovery(property).expect("a counterexample");
    println!("{property}: {:?}", path.into_actions());
}

/// Visits the states of a model, until it is done or has such discoveries.
fn visited<M: Searched>(model: M, until: HasDiscoveries) -> impl Checker<M> {
    println!("{model:?}");
    model.checker().threads(2).finish_when(until).spawn_bfs().join()
}
