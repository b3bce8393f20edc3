//! A recorder of metrics that does what a test says.

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// A recorder that keeps only gauges.
pub struct GaugeRecorder<G> {
    /// Called for each metric that is described.
    pub described: fn(),
    /// Called for each series of a counter or a histogram.
    pub other: fn(&Key),
    /// Returns the gauge of a series.
    pub gauge: G,
}

impl<G: Fn(&Key) -> Gauge> Recorder for GaugeRecorder<G> {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
        (self.described)();
    }

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
        (self.described)();
    }

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
        (self.described)();
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        (self.other)(key);
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        (self.gauge)(key)
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        (self.other)(key);
        Histogram::noop()
    }
}
