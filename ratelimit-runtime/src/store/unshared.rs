//! The shared store of a build without Redis. This type has no values.

#![allow(clippy::unused_async, reason = "the methods of the Redis store are async")]

use std::sync::Arc;

use super::{
    Calls, Charge, CorrectedCharge, Failure, GiveBack, Reply, ScanPosition, Stated, StoredRules,
};
use crate::algorithm::Outcome;
use crate::key::Key;
use crate::limit::Terms;
use crate::reply::StoreError;

#[derive(Clone)]
pub(crate) enum SharedStore {}

/// Defines async methods, and methods, of a type without values.
macro_rules! methods {
    (
        $(async fn $async:ident($($taken:ty),*) -> $replied:ty;)*
        $(fn $name:ident($($argument:ty),*) $(-> $returned:ty)?;)*
    ) => {
        impl SharedStore {
            $(pub(crate) async fn $async(&self, $(_: $taken),*) -> $replied {
                match *self {}
            })*
            $(pub(crate) fn $name(&self, $(_: $argument),*) $(-> $returned)? {
                match *self {}
            })*
        }
    };
}

methods! {
    async fn execute(&Calls, GiveBack<'_>) -> Result<Reply, StoreError>;
    async fn correct(&[CorrectedCharge]) -> Vec<Result<Outcome, Failure>>;
    async fn hold(&[Arc<Charge>]) -> Vec<Result<Stated, StoreError>>;
    async fn read_rules(&str) -> Result<Option<StoredRules>, StoreError>;
    async fn write_rules(&str, &StoredRules, &str) -> Result<String, StoreError>;
    async fn rule_changes(usize) -> Result<Vec<(u64, String)>, StoreError>;
    async fn announce(&str, &str) -> Result<(), StoreError>;
    async fn processes() -> Result<Vec<String>, StoreError>;
    async fn announcements(&[String]) -> Result<Vec<String>, StoreError>;
    async fn claim_report(&str, &str) -> Result<bool, StoreError>;
    async fn scan(&[u8], ScanPosition) -> Result<Scanned, StoreError>;
    async fn ping() -> Result<(), StoreError>;
    fn slot(&Charge) -> u16;
    fn server_of(u16) -> usize;
    fn count_name(&Terms, &dyn Key) -> Vec<u8>;
    fn pending() -> usize;
}

type Scanned = (Vec<Vec<u8>>, Option<ScanPosition>);
