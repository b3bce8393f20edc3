//! Runs models.

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model};

/// Declares tests, each with its checks.
macro_rules! tests {
    ($($(#[$attribute:meta])* $name:ident: $($check:expr),+;)+) => {
        $($(#[$attribute])* #[test] fn $name() { $($check;)+ })+
    };
}

/// Asserts that all properties of a model hold in every state.
macro_rules! holds {
    ($model:expr) => {
        check::search($model, None)
    };
}

/// Asserts that a model has a counterexample of the property `expected` or, if that is `None`, of none.
pub fn search<M>(model: M, expected: Option<&'static str>)
where
    M: Model<State: Debug + Hash + PartialEq + Clone + Send + Sync> + Send + Sync + Debug + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    println!("{model:?}");
    let until = match expected {
        Some(property) => HasDiscoveries::AllOf([property].into()),
        None => HasDiscoveries::AnyFailures,
    };
    let checker = model.checker().threads(2).finish_when(until).spawn_bfs().join();
    if let Some(property) = expected {
        let path = checker.discovery(property).expect("a counterexample");
        return println!("{property}: {:?}", path.into_actions());
    }
    println!("{} states, of which {} differ", checker.state_count(), checker.unique_state_count());
    if let Some((property, path)) = checker.discoveries().into_iter().next() {
        let state = path.last_state().clone();
        panic!("not {property}: {:?}\n{state:?}", path.into_actions());
    }
    assert!(checker.is_done(), "every state was visited");
}
