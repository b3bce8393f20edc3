//! Measurements as text and as Markdown.

use std::fmt::Write;

use crate::figure::{figure, rounded};

/// What is measured: the contents of a place of `BENCHMARKS.md`, or a table.
pub(crate) struct Block {
    /// The name of the place and of the results.
    pub(crate) id: &'static str,
    pub(crate) body: Body,
}

pub(crate) enum Body {
    Markdown(String),
    Table(Table),
}

pub(crate) struct Table {
    /// The compared property, without its unit.
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) better: Better,
    /// The property in which the rows differ.
    pub(crate) by: &'static str,
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Row>,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Better {
    More,
    Less,
}

#[derive(Clone)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Ours,
    Peer,
    /// Not compared: it does less than a limiter, or has no competitor.
    Beside,
}

pub(crate) struct Row {
    pub(crate) label: String,
    pub(crate) cells: Vec<Option<f64>>,
}

impl Column {
    pub(crate) fn new(name: &str, kind: Kind) -> Self {
        Self { name: name.to_owned(), kind }
    }
}

impl Row {
    /// Creates a row. A cell of a measurement that failed is empty.
    pub(crate) fn of(label: impl Into<String>, cells: impl IntoIterator<Item = f64>) -> Self {
        Self {
            label: label.into(),
            cells: cells.into_iter().map(|cell| (!cell.is_nan()).then_some(cell)).collect(),
        }
    }
}

impl Better {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::More => "more is better",
            Self::Less => "less is better",
        }
    }

    /// Returns how many times better `one` is than `other`.
    pub(crate) fn gain(self, one: f64, other: f64) -> f64 {
        match self {
            Self::More => one / other,
            Self::Less => other / one,
        }
    }
}

impl Table {
    /// Returns the best figure of a row in which several limiters are compared.
    fn best(&self, row: &Row) -> Option<f64> {
        let compared = self.columns.iter().zip(&row.cells);
        let compared = compared.filter(|(column, _)| column.kind != Kind::Beside);
        if compared.clone().count() < 2 {
            return None;
        }
        compared
            .filter_map(|(_, cell)| *cell)
            .reduce(|one, other| if self.better.gain(one, other) >= 1.0 { one } else { other })
    }

    /// Returns the table as Markdown, with so many significant digits.
    pub(crate) fn markdown(&self, digits: i32) -> String {
        let mut out = format!(
            "**{}**, {}; {}.\n\n| {} |",
            self.title,
            self.unit,
            self.better.words(),
            self.by
        );
        for column in &self.columns {
            write!(out, " {} |", column.name).expect("text");
        }
        out.push_str("\n| --- |");
        out.push_str(&" ---: |".repeat(self.columns.len()));
        for row in &self.rows {
            let text_of = |value| rounded(value, digits);
            let best = self.best(row).map(text_of);
            write!(out, "\n| {} |", row.label).expect("text");
            for (column, cell) in self.columns.iter().zip(&row.cells) {
                let text = cell.map_or("–".to_owned(), text_of);
                let wins = column.kind != Kind::Beside && best.as_ref() == Some(&text);
                let bold = if wins { "**" } else { "" };
                write!(out, " {bold}{text}{bold} |").expect("text");
            }
        }
        out.push('\n');
        out
    }

    /// Returns the table as comma-separated values, with its title in the first cell.
    pub(crate) fn csv(&self) -> String {
        let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
        let Self { title, unit, by, .. } = self;
        let mut out = quoted(&format!("{title}, {unit}; {}: {by}", self.better.words()));
        for column in &self.columns {
            write!(out, ",{}", quoted(&column.name)).expect("text");
        }
        for row in &self.rows {
            write!(out, "\n{}", quoted(&row.label)).expect("text");
            for cell in &row.cells {
                let text = cell.map_or_else(String::new, |value| figure(value).replace(',', ""));
                write!(out, ",{text}").expect("text");
            }
        }
        out.push('\n');
        out
    }
}

impl Block {
    pub(crate) fn table(id: &'static str, table: Table) -> Self {
        Self { id, body: Body::Table(table) }
    }

    pub(crate) fn markdown(id: &'static str, text: String) -> Self {
        Self { id, body: Body::Markdown(text) }
    }

    /// Returns the table as text for a terminal.
    pub(crate) fn text(&self) -> String {
        match &self.body {
            Body::Markdown(text) => text.clone(),
            Body::Table(table) => table.markdown(3),
        }
    }
}
