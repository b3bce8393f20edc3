//! The shared store of a build without Redis. This type has no values.

#![allow(clippy::unused_async, reason = "the methods of the Redis store are async")]

use std::sync::Arc;

use super::{Calls, Charge, CorrectError, CorrectedCharge, Reply, RollbackHook, Stated};
#[cfg(feature = "rules")]
use super::{ScanPosition, StoredRules};
use crate::algorithm::Outcome;
use crate::key::Key;
use crate::limit::Terms;
use crate::reply::StoreError;

#[derive(Clone)]
pub(crate) enum SharedStore {}

impl SharedStore {
    pub(crate) async fn execute(&self, _: Calls) -> Result<Reply, StoreError> {
        match *self {}
    }

    pub(crate) async fn correct(
        &self,
        _: &[CorrectedCharge],
    ) -> Vec<Result<Outcome, CorrectError>> {
        match *self {}
    }

    pub(crate) async fn hold(&self, _: &[Arc<Charge>]) -> Vec<Result<Stated, StoreError>> {
        match *self {}
    }

    pub(crate) fn slot(&self, _: &Charge) -> u16 {
        match *self {}
    }

    pub(crate) fn server_of(&self, _: u16) -> usize {
        match *self {}
    }

    pub(crate) fn on_rollback(&self, _: RollbackHook) {
        match *self {}
    }

    pub(crate) async fn ping(&self) -> Result<(), StoreError> {
        match *self {}
    }

    pub(crate) fn count_name(&self, _: &Terms, _: &dyn Key) -> Vec<u8> {
        match *self {}
    }

    pub(crate) fn is_idle(&self) -> bool {
        match *self {}
    }
}

#[cfg(feature = "rules")]
impl SharedStore {
    pub(crate) async fn read_rules(&self, _: &str) -> Result<Option<StoredRules>, StoreError> {
        match *self {}
    }

    pub(crate) async fn write_rules(
        &self,
        _: &str,
        _: &StoredRules,
        _: &str,
    ) -> Result<String, StoreError> {
        match *self {}
    }

    pub(crate) async fn rule_changes(&self, _: usize) -> Result<Vec<(u64, String)>, StoreError> {
        match *self {}
    }

    pub(crate) async fn announce(&self, _: &str, _: &str) -> Result<(), StoreError> {
        match *self {}
    }

    pub(crate) async fn processes(&self) -> Result<Vec<String>, StoreError> {
        match *self {}
    }

    pub(crate) async fn announcements(&self, _: &[String]) -> Result<Vec<String>, StoreError> {
        match *self {}
    }

    pub(crate) async fn claim_report(&self, _: &str, _: &str) -> Result<bool, StoreError> {
        match *self {}
    }

    pub(crate) async fn scan(
        &self,
        _: &[u8],
        _: ScanPosition,
    ) -> Result<(Vec<Vec<u8>>, Option<ScanPosition>), StoreError> {
        match *self {}
    }
}
