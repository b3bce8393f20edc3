//! A limit that is a bucket: what can be booked ahead.

use std::ops::Deref;

use super::Limit;

/// A token bucket or a leaky bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketLimit(Limit);

impl BucketLimit {
    pub(crate) fn of(limit: &Limit) -> Option<Self> {
        limit.algorithm().is_bucket().then_some(Self(*limit))
    }

    /// What one of so many processes may admit by itself.
    pub(crate) fn share(&self, instances: u32) -> Self {
        Self(self.0.share(instances))
    }
}

impl Deref for BucketLimit {
    type Target = Limit;

    fn deref(&self) -> &Limit {
        &self.0
    }
}
