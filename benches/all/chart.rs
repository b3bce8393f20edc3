//! Draws a table as an SVG chart of lines. This library is drawn in front. Each line has its name at its end.
//!
//! The chart is readable as an `<img>` on light and on dark pages. Its description gives values in words.

use std::fmt::Write;

use crate::figure::{figure, short};
use crate::table::{Axis, Column, Kind, Table};

const SIZE: (f64, f64) = (860.0, 440.0);
/// The edges of the area of the lines: left, top, right, bottom.
const PLOT: (f64, f64, f64, f64) = (72.0, 92.0, 650.0, 376.0);
/// The least distance between the names of two lines.
const NAME: f64 = 19.0;

const STYLE: &str = "
text { font: 13px system-ui, -apple-system, 'Segoe UI', sans-serif; fill: #59636e }
.card { fill: #ffffff; stroke: #d1d9e0 }
.title { font-size: 18px; font-weight: 600; fill: #1f2328 }
.grid { stroke: #e6eaef }
.axis { stroke: #b6bec7 }
.tick { font-size: 12px; font-variant-numeric: tabular-nums }
.name { font-weight: 500 }
.line { fill: none; stroke-width: 1.75; stroke-linejoin: round; stroke-linecap: round }
.lead { stroke-width: 1; opacity: .55 }
.ours .line { stroke-width: 3.5 }
.ours .name { font-weight: 700 }
.also .line, .floor .line { stroke-dasharray: 1 5; stroke-width: 2.25 }
.ours, .also { stroke: #d1410c } .ours text, .also text { fill: #b93608 }
.a { stroke: #2f6cb3 } .a text { fill: #2a61a1 }
.b { stroke: #2b8a7e } .b text { fill: #23766b }
.c { stroke: #7a5cb8 } .c text { fill: #6c4fa8 }
.d { stroke: #9a7a1c } .d text { fill: #856812 }
.floor { stroke: #7d8590 }
g text { stroke: none }
.dot { stroke-width: 1.5; stroke: #ffffff }
.ours .dot, .also .dot { fill: #d1410c } .floor .dot { fill: #7d8590 }
.a .dot { fill: #2f6cb3 } .b .dot { fill: #2b8a7e } .c .dot { fill: #7a5cb8 } .d .dot { fill: #9a7a1c }
@media (prefers-color-scheme: dark) {
text { fill: #9198a1 }
.card { fill: #0d1117; stroke: #3d444d }
.title { fill: #f0f6fc }
.grid { stroke: #21262d }
.axis { stroke: #4b535d }
.ours, .also { stroke: #ff8a55 } .ours text, .also text { fill: #ff9d70 }
.a { stroke: #6ea8ea } .a text { fill: #86b6ee }
.b { stroke: #4fb9ab } .b text { fill: #68c5b8 }
.c { stroke: #ab92e6 } .c text { fill: #b9a4ea }
.d { stroke: #cfae52 } .d text { fill: #d8bb6b }
.dot { stroke: #0d1117 }
.ours .dot, .also .dot { fill: #ff8a55 }
.a .dot { fill: #6ea8ea } .b .dot { fill: #4fb9ab } .c .dot { fill: #ab92e6 } .d .dot { fill: #cfae52 }
}
";

/// A line, and the position of its name.
struct Line<'a> {
    column: &'a Column,
    class: &'static str,
    /// The figures, each with its position.
    points: Vec<(f64, f64, f64)>,
    name_at: f64,
}

pub(crate) fn lines(table: &Table, axis: Axis) -> String {
    let scale = Vertical::new(table, axis);
    let places = places(table);
    let mut lines: Vec<Line<'_>> = table
        .columns
        .iter()
        .enumerate()
        .filter_map(|(index, column)| {
            let cells = table.rows.iter().zip(&places);
            let points = cells.filter_map(|(row, x)| {
                row.cells[index].map(|value| (*x, scale.place(value), value))
            });
            let points: Vec<_> = points.collect();
            let name_at = points.last()?.1;
            let first = !table.columns[..index].iter().any(|other| other.kind == Kind::Ours);
            Some(Line { column, class: class(column, first), points, name_at })
        })
        .collect();
    spread(&mut lines);
    // This library is drawn last, in front of all others.
    lines.sort_by_key(|line| line.class == "ours");

    let mut out = String::new();
    let (width, height) = SIZE;
    let title = escaped(table.title);
    write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" role=\"img\" aria-labelledby=\"title desc\">\n\
         <title id=\"title\">{title}</title>\n<desc id=\"desc\">{}</desc>\n<style>{STYLE}</style>\n\
         <rect class=\"card\" x=\".5\" y=\".5\" width=\"{}\" height=\"{}\" rx=\"10\"/>\n\
         <text class=\"title\" x=\"28\" y=\"40\">{title}</text>\n\
         <text x=\"28\" y=\"62\">{}; {}</text>\n",
        escaped(&described(table, &lines)),
        width - 1.0,
        height - 1.0,
        escaped(table.unit),
        table.better.words(),
    )
    .expect("text");
    axes(&mut out, table, &scale, &places);
    for line in &lines {
        draw(&mut out, line);
    }
    out + "</svg>\n"
}

/// Returns the class of a line. A limiter has the same colour in all charts.
fn class(column: &Column, first: bool) -> &'static str {
    match (column.kind, column.name.as_str()) {
        (Kind::Ours, _) if first => "ours",
        (_, name) if name.starts_with("ours") => "also",
        (Kind::Beside, _) => "floor",
        (_, "throttle-kit") => "b",
        (_, "trypema") => "c",
        (_, "actix-limitation") => "d",
        _ => "a",
    }
}

/// The conversion from values to positions.
struct Vertical {
    axis: Axis,
    from: f64,
    to: f64,
    ticks: Vec<f64>,
}

impl Vertical {
    fn new(table: &Table, axis: Axis) -> Self {
        let values = table.rows.iter().flat_map(|row| row.cells.iter().flatten().copied());
        let (least, most) = values.fold((f64::MAX, 0.0), |(least, most): (f64, f64), value| {
            (least.min(value), most.max(value))
        });
        if axis == Axis::Linear {
            let step = [1.0, 2.0, 2.5, 5.0, 10.0]
                .map(|step| step * 10_f64.powf((most / 5.0).log10().floor()))
                .into_iter()
                .find(|step| most / step <= 5.5)
                .unwrap_or(most);
            let count = (most / step).ceil() as u32;
            let ticks = (0..=count).map(|tick| f64::from(tick) * step).collect();
            return Self { axis, from: 0.0, to: f64::from(count) * step, ticks };
        }
        let decades = (most / least).log10();
        let parts: &[f64] = if decades < 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let all: Vec<f64> = (-9..15)
            .flat_map(|power| parts.iter().map(move |part| part * 10_f64.powi(power)))
            .collect();
        let from = all.iter().copied().rfind(|tick| *tick <= least * 1.0001).unwrap_or(least);
        let to = all.iter().copied().find(|tick| *tick >= most * 0.9999).unwrap_or(most);
        let ticks = all.into_iter().filter(|tick| (from..=to).contains(tick)).collect();
        Self { axis, from, to, ticks }
    }

    fn place(&self, value: f64) -> f64 {
        let share = match self.axis {
            Axis::Linear => value / self.to,
            Axis::Log => (value / self.from).ln() / (self.to / self.from).ln(),
        };
        PLOT.3 - share * (PLOT.3 - PLOT.1)
    }
}

/// Returns the positions of the rows, by their logarithms.
fn places(table: &Table) -> Vec<f64> {
    let at: Vec<f64> = table.rows.iter().map(|row| row.at.expect("an axis").ln()).collect();
    let (first, last) = (at[0], at[at.len() - 1]);
    let width = if last > first { last - first } else { 1.0 };
    // Not on the axis itself.
    let (left, right) = (PLOT.0 + 14.0, PLOT.2 - 6.0);
    at.iter().map(|at| left + (at - first) / width * (right - left)).collect()
}

/// Moves names apart that would overlap.
fn spread(lines: &mut [Line<'_>]) {
    lines.sort_by(|one, other| one.name_at.total_cmp(&other.name_at));
    for _ in 0..200 {
        for index in 1..lines.len() {
            let short = NAME - (lines[index].name_at - lines[index - 1].name_at);
            if short > 0.01 {
                lines[index - 1].name_at -= short / 2.0;
                lines[index].name_at += short / 2.0;
            }
        }
        for line in &mut *lines {
            line.name_at = line.name_at.clamp(PLOT.1, PLOT.3);
        }
    }
}

fn axes(out: &mut String, table: &Table, scale: &Vertical, places: &[f64]) {
    let (left, _, right, bottom) = PLOT;
    for tick in &scale.ticks {
        let y = scale.place(*tick);
        let class = if (y - bottom).abs() < 0.5 { "axis" } else { "grid" };
        write!(
            out,
            "<line class=\"{class}\" x1=\"{left}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>\n\
             <text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
            left - 10.0,
            y + 4.0,
            short(*tick),
        )
        .expect("text");
    }
    let mut free_from = 0.0;
    for (row, x) in table.rows.iter().zip(places) {
        let mark = bottom + 5.0;
        writeln!(out, "<path class=\"axis\" d=\"M{x:.1} {bottom}V{mark}\"/>").expect("text");
        if *x >= free_from {
            let (y, text) = (bottom + 21.0, short(row.at.expect("an axis")));
            writeln!(
                out,
                "<text class=\"tick\" x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{text}</text>"
            )
            .expect("text");
            free_from = x + 36.0;
        }
    }
    let (middle, y) = (f64::midpoint(left, right), bottom + 44.0);
    writeln!(out, "<text x=\"{middle}\" y=\"{y}\" text-anchor=\"middle\">{}</text>", table.by)
        .expect("text");
}

fn draw(out: &mut String, line: &Line<'_>) {
    let mut path = String::new();
    for (index, (x, y, _)) in line.points.iter().enumerate() {
        write!(path, "{}{x:.1} {y:.1}", if index == 0 { 'M' } else { 'L' }).expect("text");
    }
    let radius = if line.class == "ours" { 5.0 } else { 3.5 };
    write!(out, "<g class=\"{}\">\n<path class=\"line\" d=\"{path}\"/>\n", line.class)
        .expect("text");
    for (x, y, _) in &line.points {
        writeln!(out, "<circle class=\"dot\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\"/>")
            .expect("text");
    }
    let (x, y, value) = line.points[line.points.len() - 1];
    let names = PLOT.2 + 22.0;
    write!(
        out,
        "<path class=\"lead\" d=\"M{:.1} {y:.1}L{:.1} {:.1}\"/>\n\
         <text class=\"name\" x=\"{names}\" y=\"{:.1}\">{}\
         <tspan dx=\"7\" font-weight=\"400\">{}</tspan></text>\n</g>\n",
        x + 7.0,
        names - 5.0,
        line.name_at,
        line.name_at + 4.5,
        escaped(&line.column.name),
        figure(value),
    )
    .expect("text");
}

/// Returns the description for readers who cannot see the chart.
fn described(table: &Table, lines: &[Line<'_>]) -> String {
    let mut text = format!("{}, {}.", table.unit, table.better.words());
    let labels = [&table.rows[0].label, &table.rows[table.rows.len() - 1].label];
    for line in lines {
        let (first, last) = (line.points[0].2, line.points[line.points.len() - 1].2);
        write!(
            text,
            " {}: {} at {} {}, {} at {}.",
            line.column.name.replace('`', ""),
            figure(first),
            labels[0],
            table.by,
            figure(last),
            labels[1],
        )
        .expect("text");
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('`', "").replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
