//! Simulates a fleet on virtual time: how many requests leases save, how many units stand idle, and how many calls are
//! rejected too early. A test compares the model with limiters on Redis.

use support::leases::{Fleet, Leasing, Quota, Verdict};

use crate::table::{Better, Block, Column, Kind, Row, Table};
use crate::{Scale, keys};

/// The bucket of each tenant: 40,000 tokens a second.
const QUOTA: Quota = Quota { threshold: 2_400_000, burst: 80_000, period: 60_000_000 };
const TENANTS: u32 = 10_000;
/// The calls of all processes in a second. The busiest tenant calls 51,000 times a second and has used its burst after
/// some seconds. The second calls half as often.
const CALLS: u64 = 500_000;
/// The first second does not count: leases begin small.
const WARM: u64 = 1;
const MEASURED: u64 = 9;

const ALL: [(&str, Leasing); 4] = [
    ("without leases", Leasing::None),
    ("`lease = 50`", Leasing::UpTo(50)),
    ("`lease = 1000`", Leasing::UpTo(1_000)),
    ("`lease = \"auto\"`", Leasing::Auto),
];

/// The calls that were admitted; the requests to Redis; and the units of the busiest tenant that all processes held
/// when its first call was rejected.
#[derive(Clone, Copy, Default)]
struct Figures {
    admitted: u64,
    requests: u64,
    idle: Option<u64>,
}

fn simulate(leasing: Leasing, processes: usize, seconds: [u64; 2], tenants: &[u32]) -> Figures {
    let mut fleet = Fleet::new(QUOTA, leasing, processes);
    let (start, mut figures, mut before) = (1_000_000_000, Figures::default(), 0);
    let [warm, measured] = seconds.map(|seconds| seconds * CALLS);
    let callers = keys::uniform(processes as u32, tenants.len() - 1);
    for call in 0..warm + measured {
        if call == warm {
            before = fleet.requests + fleet.give_backs;
        }
        let now = start + call * 1_000_000 / CALLS;
        // The lists have different lengths, so each tenant comes to each process.
        let process = callers[call as usize % callers.len()] as usize;
        let tenant = tenants[call as usize % tenants.len()];
        let verdict = fleet.call(process, tenant.into(), now);
        if call >= warm {
            if verdict != Verdict::Rejected {
                figures.admitted += 1;
            } else if figures.idle.is_none() {
                figures.idle = Some(fleet.held(tenant.into()));
            }
        }
    }
    figures.requests = fleet.requests + fleet.give_backs - before;
    figures
}

pub(crate) fn measure(scale: &Scale) -> Vec<Block> {
    let (most, seconds) = if scale.quick { (10, [1, 1]) } else { (1_000, [WARM, MEASURED]) };
    let tenants = keys::zipf(TENANTS, 1 << 20);
    let sizes: Vec<u32> = keys::powers(most).collect();
    let all: Vec<[Figures; 4]> = sizes
        .iter()
        .map(|size| ALL.map(|(_, leasing)| simulate(leasing, *size as usize, seconds, &tenants)))
        .collect();
    let decisions = (seconds[1] * CALLS) as f64;
    let table = |id, title, unit, first: usize, of: &dyn Fn(&[Figures; 4], usize) -> f64| {
        // Drawn in front. There is no peer.
        let kind = |leasing| if leasing == Leasing::Auto { Kind::Ours } else { Kind::Beside };
        let columns = ALL[first..].iter().map(|(name, leasing)| Column::new(name, kind(*leasing)));
        let columns = columns.collect();
        let row = |(size, figures): (&u32, &[Figures; 4])| {
            Row::of(size.to_string(), (first..ALL.len()).map(|index| of(figures, index)))
        };
        let rows = sizes.iter().zip(&all).map(row).collect();
        let better = Better::Less;
        Block::table(id, Table { title, unit, better, by: "processes", columns, rows })
    };
    vec![
        table(
            "simulated-requests",
            "Requests to Redis, simulated",
            "of 100 decisions",
            0,
            &|all, index| all[index].requests as f64 / decisions * 100.0,
        ),
        table(
            "simulated-early",
            "Calls that are rejected too early, simulated",
            "of 100 calls that are admitted without leases",
            1,
            &|all, index| 100.0 - all[index].admitted as f64 / all[0].admitted as f64 * 100.0,
        ),
        table(
            "simulated-idle",
            "Units that stand idle while the first call is rejected, simulated",
            "of 100 units that a bucket admits at once",
            1,
            &|all, index| {
                all[index].idle.map_or(f64::NAN, |idle| idle as f64 / QUOTA.burst as f64 * 100.0)
            },
        ),
    ]
}
