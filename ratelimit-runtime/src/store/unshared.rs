//! The shared store of a build without Redis. This type has no values.

#[cfg(feature = "rules")]
use super::{Announcement, NewRules, RuleStore, ScanPosition, StoredRules};
use super::{Calls, Charge, CorrectError, CorrectedCharge, Reply, RollbackHook, Stated, Store};
use std::sync::Arc;

use crate::algorithm::Outcome;
use crate::key::Key;
use crate::limit::Terms;
use crate::reply::StoreError;

#[derive(Clone)]
pub(crate) enum Unshared {}

impl Store for Unshared {
    async fn execute(&self, _: Calls) -> Result<Reply, StoreError> {
        match *self {}
    }

    async fn correct(&self, _: &[CorrectedCharge]) -> Vec<Result<Outcome, CorrectError>> {
        match *self {}
    }

    async fn hold(&self, _: &[Arc<Charge>]) -> Vec<Result<Stated, StoreError>> {
        match *self {}
    }

    fn slot(&self, _: &Charge) -> u16 {
        match *self {}
    }

    fn server_of(&self, _: u16) -> usize {
        match *self {}
    }

    fn on_rollback(&self, _: RollbackHook) {
        match *self {}
    }

    async fn ping(&self) -> Result<(), StoreError> {
        match *self {}
    }

    fn count_name(&self, _: &Terms, _: &dyn Key) -> Vec<u8> {
        match *self {}
    }

    fn is_idle(&self) -> bool {
        match *self {}
    }
}

#[cfg(feature = "rules")]
impl RuleStore for Unshared {
    async fn read_rules(&self, _: &str) -> Result<Option<StoredRules>, StoreError> {
        match *self {}
    }

    async fn write_rules(&self, _: NewRules) -> Result<String, StoreError> {
        match *self {}
    }

    async fn rule_changes(&self, _: usize) -> Result<Vec<(u64, String)>, StoreError> {
        match *self {}
    }

    async fn announce(&self, _: Announcement) -> Result<(), StoreError> {
        match *self {}
    }

    async fn processes(&self) -> Result<Vec<String>, StoreError> {
        match *self {}
    }

    async fn announcements(&self, _: &[String]) -> Result<Vec<String>, StoreError> {
        match *self {}
    }

    async fn claim_report(&self, _: &str, _: &str) -> Result<bool, StoreError> {
        match *self {}
    }

    async fn scan(
        &self,
        _: &[u8],
        _: ScanPosition,
    ) -> Result<(Vec<Vec<u8>>, Option<ScanPosition>), StoreError> {
        match *self {}
    }
}
