//! Those who decide on Redis, together: they take turns, on the same keys.

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

    /// With ours on leases as well.
    pub(crate) fn with_leases() -> Self {
        Self::of(&[&ALL[..], &LEASES[..]].concat())
    }

    /// Those of these names, ours first.
    fn of(names: &[(&'static str, Kind)]) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let all =
            names.iter().map(|(name, kind)| Contender::start(&runtime, name, *kind)).collect();
        Self { runtime, all }
    }

    pub(crate) fn columns(&self) -> Vec<Column> {
        self.all.iter().map(|contender| contender.column.clone()).collect()
    }

    /// Makes so many keys of each, as far as they find room: those have their part in the rounds.
    pub(crate) fn fill(&self, count: u32) -> Vec<bool> {
        fill::fill(&self.runtime, &self.all, count)
    }

    /// So many tasks decide keys of that list, each limiter in its turn.
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
    [("ours, `lease = 50`", Kind::Beside), ("ours, `lease = 1000`", Kind::Beside)];
