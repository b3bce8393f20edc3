//! Draws lanes as SVG, in the style of the playground: a pin for each admitted call, a cross for each rejected
//! call. The picture is dark on dark pages, and its description repeats it in words.

use std::fmt::Write;
use std::time::Duration;

use crate::lane::{Lane, PERIOD, length};

const WIDTH: f64 = 860.0;
/// Where time is drawn: left and right.
const STRIP: (f64, f64) = (236.0, 768.0);
const HEAD: f64 = 44.0;
const LANE: f64 = 104.0;
const AXIS: f64 = 30.0;
/// Of a full bucket, and of a window.
const FULL: f64 = 42.0;
const PIN: f64 = 34.0;

const STYLE: &str = "\
text{font:13px Inter,system-ui,-apple-system,'Segoe UI',sans-serif;fill:#5d666e;font-variant-numeric:tabular-nums}\
.paper{fill:#f6f6f3;stroke:#e7e8e4}.sheet{fill:#fff}.line{stroke:#e7e8e4}.base{stroke:#5d666e}\
.name{fill:#15191d;font-size:15px;font-weight:650}.small{font-size:12px}.tally{fill:#15191d;font-weight:620}\
.pin{stroke:#0a7060;stroke-width:2;fill:none}.head{fill:#0a7060}.cross{stroke:#b8390e;stroke-width:1.6;fill:none}\
.tint{fill:#0a7060;fill-opacity:.11}.edge{stroke:#0a7060;stroke-opacity:.4;fill:none}\
.most{stroke:#15191d;fill:none}.count{fill:#15191d;font-size:12px}\
@media(prefers-color-scheme:dark){text{fill:#9aa5ae}.paper{fill:#0f1215;stroke:#252b31}.sheet{fill:#171b1f}\
.line{stroke:#252b31}.base{stroke:#9aa5ae}.name,.tally,.count{fill:#eef1f3}.pin{stroke:#4fd1b5}.head{fill:#4fd1b5}\
.cross{stroke:#ff9466}.tint{fill:#4fd1b5;fill-opacity:.12}.edge{stroke:#4fd1b5}.most{stroke:#eef1f3}}";

pub(crate) fn picture(title: &str, lanes: &[Lane]) -> String {
    let bottom = HEAD + LANE * lanes.len() as f64;
    let height = bottom + AXIS;
    let described: Vec<_> = lanes.iter().map(Lane::summary).collect();
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" aria-labelledby=\"title desc\">\n\
         <title id=\"title\">{title}</title>\n<desc id=\"desc\">{}</desc>\n<style>{STYLE}</style>\n\
         <rect class=\"paper\" x=\".5\" y=\".5\" width=\"{}\" height=\"{}\" rx=\"12\"/>\n\
         <path class=\"sheet\" d=\"M1 {HEAD}H{}V{bottom}H1Z\"/>\n",
        described.join(" "),
        WIDTH - 1.0,
        height - 1.0,
        WIDTH - 1.0,
    );
    legend(&mut out);
    axis(&mut out, bottom);
    for (index, one) in lanes.iter().enumerate() {
        lane(&mut out, one, HEAD + LANE * index as f64);
    }
    out + "</svg>\n"
}

fn legend(out: &mut String) {
    let y = HEAD / 2.0;
    let text = y + 4.5;
    write!(
        out,
        "<circle class=\"head\" cx=\"28\" cy=\"{y}\" r=\"4\"/><text x=\"40\" y=\"{text}\">admitted</text>\n\
         <path class=\"cross\" d=\"{}\"/><text x=\"128\" y=\"{text}\">rejected</text>\n\
         <path class=\"tint\" d=\"M200 {}h20v12h-20Z\"/><path class=\"edge\" d=\"M200 {}v12M220 {}v12\"/>\
         <text x=\"230\" y=\"{text}\">window, or what is in the bucket</text>\n\
         <path class=\"most\" d=\"M452 {}v-5h24v5\"/><text x=\"486\" y=\"{text}\">the fullest 5 s</text>\n",
        cross(116.0, y),
        y - 6.0,
        y - 6.0,
        y - 6.0,
        y + 3.0,
    )
    .expect("text");
}

fn axis(out: &mut String, bottom: f64) {
    let mut lines = String::new();
    for second in (0..=length().as_secs()).step_by(2) {
        let at = x(Duration::from_secs(second));
        write!(lines, "M{at:.1} {HEAD}V{bottom}").expect("text");
        writeln!(
            out,
            "<text class=\"small\" x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{second} s</text>",
            bottom + 19.0
        )
        .expect("text");
    }
    writeln!(out, "<path class=\"line\" d=\"{lines}\"/>").expect("text");
}

fn lane(out: &mut String, lane: &Lane, top: f64) {
    let base = top + 76.0;
    let full = base - FULL;
    writeln!(
        out,
        "<path class=\"line\" d=\"M1 {top}H{}\"/>\n\
         <text class=\"name\" x=\"24\" y=\"{}\">{}</text>\n<text x=\"24\" y=\"{}\">{}</text>",
        WIDTH - 1.0,
        top + 48.0,
        lane.name,
        top + 68.0,
        lane.promise,
    )
    .expect("text");

    for start in &lane.windows {
        let (from, to) = (x(*start), x(*start + PERIOD).min(STRIP.1));
        writeln!(
            out,
            "<path class=\"tint\" d=\"M{from:.1} {base}V{full}H{to:.1}V{base}Z\"/>\
             <path class=\"edge\" d=\"M{from:.1} {base}V{full}H{to:.1}V{base}\"/>"
        )
        .expect("text");
    }
    if let (Some(first), Some(last)) = (lane.levels.first(), lane.levels.last()) {
        let mut outline = String::new();
        for (index, (at, level)) in lane.levels.iter().enumerate() {
            let letter = if index == 0 { 'M' } else { 'L' };
            write!(outline, "{letter}{:.1} {:.1}", x(*at), base - level * FULL).expect("text");
        }
        let (left, right) = (x(first.0), x(last.0));
        writeln!(
            out,
            "<path class=\"tint\" d=\"{outline}L{right:.1} {base}H{left:.1}Z\"/><path class=\"edge\" d=\"{outline}\"/>"
        )
        .expect("text");
    }
    fullest(out, lane, full);

    let (mut pins, mut crosses) = (String::new(), String::new());
    for at in &lane.admitted {
        write!(pins, "M{:.1} {base}v-{PIN}", x(*at)).expect("text");
        let (x, y) = (x(*at), base - PIN);
        writeln!(out, "<circle class=\"head\" cx=\"{x:.1}\" cy=\"{y}\" r=\"3.4\"/>").expect("text");
    }
    for at in &lane.refused {
        crosses += &cross(x(*at), base + 12.0);
    }
    let (tally, admitted, refused) = (STRIP.1 + 24.0, lane.admitted.len(), lane.refused.len());
    writeln!(
        out,
        "<path class=\"base\" d=\"M{} {base}H{}\"/>\n<path class=\"pin\" d=\"{pins}\"/>\n\
         <path class=\"cross\" d=\"{crosses}\"/>\n\
         <circle class=\"head\" cx=\"{tally}\" cy=\"{}\" r=\"4\"/><path class=\"cross\" d=\"{}\"/>\n\
         <text class=\"tally\" x=\"832\" y=\"{}\" text-anchor=\"end\">{admitted}</text>\
         <text class=\"tally\" x=\"832\" y=\"{}\" text-anchor=\"end\">{refused}</text>",
        STRIP.0,
        STRIP.1,
        top + 44.0,
        cross(tally, top + 65.0),
        top + 48.5,
        top + 69.5,
    )
    .expect("text");
}

/// A bracket over the period in which most was admitted. Where there are no windows to see, it is what
/// the sliding one looked back upon then.
fn fullest(out: &mut String, lane: &Lane, full: f64) {
    let (end, count) = lane.fullest();
    let (from, to) = (x(end.saturating_sub(PERIOD)), x(end));
    if lane.windows.is_empty() && lane.levels.is_empty() {
        let base = full + FULL;
        writeln!(out, "<path class=\"tint\" d=\"M{from:.1} {base}V{full}H{to:.1}V{base}Z\"/>")
            .expect("text");
    }
    let y = full - 4.0;
    writeln!(
        out,
        "<path class=\"most\" d=\"M{from:.1} {y}v-5H{to:.1}v5\"/>\
         <text class=\"count\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{count} in 5 s</text>",
        f64::midpoint(from, to),
        y - 10.0,
    )
    .expect("text");
}

fn x(at: Duration) -> f64 {
    STRIP.0 + 12.0 + at.as_secs_f64() / length().as_secs_f64() * (STRIP.1 - STRIP.0 - 12.0)
}

fn cross(x: f64, y: f64) -> String {
    format!("M{:.1} {:.1}l5 5m0-5l-5 5", x - 2.5, y - 2.5)
}
