//! The limiters that decide on Redis, together: they decide the same keys in turn.

use std::sync::Arc;

use tokio::runtime::Runtime;

use crate::contender::{Contender, Figures};
use crate::table::{Column, Kind};
use crate::turns::in_turns;
use crate::{Scale, fill};

pub(crate) struct Fleet {
    runtime: Runtime,
    all: Vec<Contender>,
}

impl Fleet {
    pub(crate) fn start() -> Self {
        Self::of(&ALL)
    }

    /// Starts all limiters, and this library with leases as well.
    pub(crate) fn with_leases() -> Self {
        Self::of(&[&ALL[..], &LEASES[..]].concat())
    }

    /// Starts the limiters with these names, this library first.
    fn of(names: &[(&'static str, Kind)]) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let all =
            names.iter().map(|(name, kind)| Contender::start(&runtime, name, *kind)).collect();
        Self { runtime, all }
    }

    pub(crate) fn columns(&self) -> Vec<Column> {
        self.all.iter().map(|contender| contender.column.clone()).collect()
    }

    /// Creates `count` keys of each limiter, if there is room for them. Only the limiters that have them take
    /// part in the rounds.
    pub(crate) fn fill(&self, count: u32) -> Vec<bool> {
        fill::fill(&self.runtime, &self.all, count)
    }

    /// Lets `tasks` tasks decide the keys of the list, with one limiter after the other.
    pub(crate) fn round(
        &self,
        scale: &Scale,
        tasks: usize,
        keys: Vec<u32>,
        there: &[bool],
    ) -> Vec<Figures> {
        let keys: Arc<[u32]> = keys.into();
        let all: Vec<(&Contender, &bool)> = self.all.iter().zip(there).collect();
        in_turns(scale.rounds, &all, |(who, there)| {
            if **there {
                who.round(&self.runtime, tasks, &keys, scale.round)
            } else {
                [f64::NAN; 5]
            }
        })
    }
}

const ALL: [(&str, Kind); 6] = [
    ("ours", Kind::Ours),
    ("`EVALSHA`", Kind::Peer),
    ("throttle-kit", Kind::Peer),
    ("trypema", Kind::Peer),
    ("actix-limitation", Kind::Peer),
    ("`INCR`", Kind::Beside),
];

const LEASES: [(&str, Kind); 2] =
    [("ours, `lease = 50`", Kind::Beside), ("ours, `lease = \"auto\"`", Kind::Beside)];
