//! The budgets of this library, as multiples of another limiter, and what a run has reached.

use crate::table::{Better, Block, Body, Column, Kind, Row, Table};

/// A multiple to reach in a row of a table.
struct Budget {
    /// The table, its row and the columns that are compared.
    id: &'static str,
    row: &'static str,
    ours: &'static str,
    peer: &'static str,
    multiple: f64,
}

const fn budget(id: &'static str, row: &'static str, peer: &'static str, multiple: f64) -> Budget {
    Budget { id, row, ours: "ours", peer, multiple }
}

const EVALSHA: &str = "`EVALSHA`";

const BUDGETS: [Budget; 11] = [
    budget("embedded-keys", "10,000", "governor", 0.85),
    budget("embedded-keys", "1,000,000", "governor", 1.2),
    budget("attribute-calls", "`key = \"{user}:{id}\"`", "governor by hand with `format!`", 1.1),
    budget("together", "2", "governor, one after the other", 0.65),
    Budget {
        ours: "ours, sliding",
        ..budget(
            "embedded-steady",
            "10,000 keys, 100 a minute, nearly full",
            "ours, token bucket",
            1.0 / 2.3,
        )
    },
    budget("redis-tasks", "1", EVALSHA, 0.95),
    budget("redis-tasks", "4", EVALSHA, 0.95),
    budget("redis-tasks", "16", EVALSHA, 1.1),
    budget("redis-tasks", "256", EVALSHA, 2.0),
    Budget {
        ours: "ours, `lease = \"auto\"`",
        ..budget("redis-loads", "one key, 256 tasks", EVALSHA, 20.0)
    },
    budget("layer", "admitted, both send the fields", "tower_governor", 0.7),
];

/// Returns each budget and what was reached. A small run does not measure all rows.
pub(crate) fn reached(blocks: &[Block], quick: bool) -> Block {
    let rows = BUDGETS.iter().filter_map(|budget| {
        let Some((title, multiple)) = multiple(blocks, budget) else {
            assert!(quick, "no figures for the budget of {}, {}", budget.id, budget.row);
            return None;
        };
        let label = format!("{title}: {}, {} / {}", budget.row, budget.ours, budget.peer);
        Some(Row::of(label, [budget.multiple, multiple]))
    });
    let columns = ["at least", "reached"];
    let table = Table {
        title: "The budgets",
        unit: "multiples of another limiter",
        better: Better::More,
        by: "row",
        columns: columns.map(|name| Column::new(name, Kind::Beside)).into(),
        rows: rows.collect(),
    };
    Block::table("budgets", table)
}

/// Returns the title of the table of a budget, and how many times better than the other this library is in it.
fn multiple(blocks: &[Block], budget: &Budget) -> Option<(&'static str, f64)> {
    let block = blocks.iter().find(|block| block.id == budget.id)?;
    let Body::Table(table) = &block.body else { return None };
    let row = table.rows.iter().find(|row| row.label == budget.row)?;
    let cell = |name: &str| {
        let column = table.columns.iter().position(|column| column.name == name);
        row.cells[column.unwrap_or_else(|| panic!("{}: no column {name}", budget.id))]
    };
    Some((table.title, table.better.gain(cell(budget.ours)?, cell(budget.peer)?)))
}
