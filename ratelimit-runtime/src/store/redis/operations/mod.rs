//! The requests of the store, each as calls of scripts: one call, in a batch or alone; several counts or calls, also
//! over several hash slots; corrections, statements and rules.

pub(crate) mod batch;
pub(crate) mod calls;
pub(crate) mod correct;
pub(crate) mod rules;
pub(crate) mod script_call;
