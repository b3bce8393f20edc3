//! Runs models.

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model};

/// Whether the searches that take minutes run as well.
#[allow(dead_code, reason = "not each program has such a search")]
pub const LONG: bool = cfg!(feature = "long");

/// Asserts that all properties hold in every state.
pub fn holds<M>(model: M)
where
    M: Model + Send + Sync + Debug + 'static,
    M::State: Debug + Hash + PartialEq + Clone + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    let checker = visited(model, HasDiscoveries::AnyFailures);
    println!("{} states, of which {} differ", checker.state_count(), checker.unique_state_count());
    if let Some((property, path)) = checker.discoveries().into_iter().next() {
        let state = path.last_state().clone();
        panic!("not {property}: {:?}\n{state:?}", path.into_actions());
    }
    assert!(checker.is_done(), "every state was visited");
}

/// Asserts that a model with a fault has a counterexample of a property.
#[allow(dead_code, reason = "not each test has a fault")]
pub fn is_found<M>(model: M, property: &'static str)
where
    M: Model + Send + Sync + Debug + 'static,
    M::State: Debug + Hash + PartialEq + Clone + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    let is_found = HasDiscoveries::AllOf([property].into());
    let path = visited(model, is_found).discovery(property).expect("a counterexample");
    println!("{property}: {:?}", path.into_actions());
}

/// Visits the states of a model, until it is done or has such discoveries.
fn visited<M>(model: M, until: HasDiscoveries) -> impl Checker<M>
where
    M: Model + Send + Sync + Debug + 'static,
    M::State: Debug + Hash + PartialEq + Clone + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    println!("{model:?}");
    model.checker().threads(2).finish_when(until).spawn_bfs().join()
}
