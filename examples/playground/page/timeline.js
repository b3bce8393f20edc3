// The lanes of the timeline. Time moves from right to left past the line that marks the present. Right of the line is
// the known future: the end of a window, a full bucket, and the time at which the next call passes.

/** Very short and very long periods are drawn at the scale of 2 and of 20 seconds. */
const unit = (period) => Math.min(20000, Math.max(2000, period));

/** The age up to which a mark is drawn. */
export const shown = (period) => 3 * unit(period);

const colors = {};
const schemes = matchMedia("(prefers-color-scheme: dark)");
function readColors() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ink", "muted", "line", "sheet", "admitted", "refused", "tint", "tint-edge"]) {
    colors[name] = style.getPropertyValue(`--${name}`);
  }
  colors.font = `11px ${style.getPropertyValue("--mono")}`;
}
schemes.addEventListener("change", readColors);
readColors();

export function draw(lanes, ruler, period, now) {
  const view = scale(ruler.clientWidth, period, now);
  for (const lane of lanes) drawLane(lane, view);
  drawRuler(ruler, view);
}

function scale(width, period, now) {
  const [past, ahead] = [(width > 500 ? 2.6 : 1.7) * unit(period), 1.1 * unit(period)];
  const x = (at) => ((at - now + past) / (past + ahead)) * width;
  const steps = [500, 1000, 2000, 5000, 10000, 20000];
  const step = steps.find((step) => x(step) - x(0) >= 44) ?? 60000;
  return { x, width, now, first: now - past, last: now + ahead, step };
}

function surface(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const ratio = devicePixelRatio;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return [pen, height];
}

function drawLane(lane, view) {
  const [pen, height] = surface(lane.canvas);
  const base = Math.round(height * 0.72) + 0.5;
  grid(pen, view, height);
  if (lane.algorithm.endsWith("bucket")) drawLevel(pen, lane, view, base);
  else drawWindows(pen, lane, view, base);
  line(pen, colors.muted, 1, [[0, base], [view.width, base]]);
  drawMarks(pen, lane.marks, view, base, height);
  const here = Math.round(view.x(view.now)) + 0.5;
  line(pen, colors.ink, 1, [[here, 0], [here, height]]);
  if (lane.seen) drawFlag(pen, view.x(Math.max(lane.passes, view.now)), lane.open, view, base);
}

function grid(pen, { x, now, first, last, step }, height) {
  for (let at = now - Math.floor((now - first) / step) * step; at <= last; at += step) {
    const place = Math.round(x(at)) + 0.5;
    line(pen, colors.line, 1, [[place, 0], [place, height]]);
  }
}

/** Draws the windows of the count; for the sliding algorithms, also the trailing period. */
function drawWindows(pen, lane, { x, now, width }, base) {
  if (lane.algorithm !== "sliding") {
    for (const { start, end } of lane.windows) {
      const [left, right] = [Math.max(-9, x(start)), Math.min(width + 9, x(end))];
      pen.fillStyle = colors.tint;
      pen.fillRect(left + 1, 14, right - left - 2, base - 14);
      for (const edge of [left + 1, right - 1]) line(pen, colors["tint-edge"], 1, [[edge, 14], [edge, base]]);
    }
  }
  if (lane.algorithm === "fixed") return;
  const [left, right] = [Math.max(-9, x(now - lane.period)), x(now)];
  if (lane.algorithm === "sliding") {
    pen.fillStyle = colors.tint;
    pen.fillRect(left, 14, right - left, base - 14);
  }
  const top = lane.algorithm === "sliding" ? 14 : 8;
  line(pen, colors["tint-edge"], 2, [[left, base], [left, top], [right, top]]);
}

/** Draws the level of the bucket at each sample, and its refill in the future. */
function drawLevel(pen, lane, { x, now, last }, base) {
  const top = 14;
  const y = (level) => base - level * (base - top);
  const level = (sample, at) => Math.min(1, Math.max(0, 1 - (sample.resets - at) / sample.fill));
  const outline = (samples, until) => samples.flatMap((sample, index) => {
    const end = samples[index + 1]?.at ?? until;
    const bends = [sample.at, Math.min(end, Math.max(sample.at, sample.resets)), end];
    return bends.map((at) => [x(at), y(level(sample, at))]);
  });
  const newest = lane.levels.at(-1);
  if (!newest) return;
  const past = outline(lane.levels, now);
  pen.fillStyle = colors.tint;
  pen.beginPath();
  pen.moveTo(past[0][0], base);
  for (const point of past) pen.lineTo(...point);
  pen.lineTo(x(now), base);
  pen.fill();
  line(pen, colors["tint-edge"], 2, past);
  pen.setLineDash([2, 4]);
  line(pen, colors["tint-edge"], 1.5, outline([{ ...newest, at: now }], last));
  pen.setLineDash([]);
}

/** The distance at which two rejected calls share a mark, in pixels. */
const TOUCH = 12;

/** Draws a pin above the line for an admitted call. Rejected calls are crosses below the line; several that are
 * close are a band with their number. */
function drawMarks(pen, marks, { x }, base, height) {
  const groups = [];
  for (const { at, allowed } of marks) {
    const place = x(at);
    if (allowed) {
      drawPin(pen, place, base);
      continue;
    }
    const last = groups.at(-1);
    if (last && place - last.end < TOUCH) [last.end, last.count] = [place, last.count + 1];
    else groups.push({ start: place, end: place, count: 1 });
  }
  const y = (base + height) / 2;
  for (const group of groups) {
    if (group.count === 1) drawCross(pen, group.start, y);
    else drawBand(pen, group, y);
  }
}

function drawPin(pen, x, base) {
  const top = Math.min(26, base - 18);
  line(pen, colors.admitted, 2, [[x, base], [x, top]]);
  pen.fillStyle = colors.admitted;
  pen.beginPath();
  pen.arc(x, top, 3.5, 0, 7);
  pen.fill();
}

function drawCross(pen, x, y) {
  line(pen, colors.refused, 1.5, [[x - 2.5, y - 2.5], [x + 2.5, y + 2.5]]);
  line(pen, colors.refused, 1.5, [[x - 2.5, y + 2.5], [x + 2.5, y - 2.5]]);
}

function drawBand(pen, { start, end, count }, y) {
  pen.font = colors.font;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  const least = pen.measureText(count).width + 8;
  const middle = (start + end) / 2;
  const width = Math.max(least, end - start + 6);
  pen.fillStyle = colors.refused;
  pen.beginPath();
  pen.roundRect(middle - width / 2, y - 7, width, 14, 4);
  pen.fill();
  pen.fillStyle = colors.sheet;
  pen.fillText(count, middle, y + 0.5);
}

/** Draws a flag at the time at which the next call passes; filled if that is the present. */
function drawFlag(pen, x, open, { width }, base) {
  const place = Math.min(width - 10, x);
  line(pen, colors.admitted, 1.5, [[place, base], [place, 4], [place + 8, 8], [place, 12]]);
  if (open) {
    pen.fillStyle = colors.admitted;
    pen.fill();
  }
}

function drawRuler(canvas, { x, now, first, last, step, width }) {
  const [pen, height] = surface(canvas);
  pen.font = colors.font;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  const back = Math.floor((now - first) / step);
  for (let index = -back; now + index * step <= last; index += 1) {
    const seconds = (Math.abs(index) * step) / 1000;
    const label = index === 0 ? "now" : `${index < 0 ? "−" : "+"}${seconds} s`;
    const place = x(now + index * step);
    if (place < 18 || place > width - 18) continue;
    pen.fillStyle = index === 0 ? colors.ink : colors.muted;
    pen.fillText(label, place, height / 2);
  }
}

function line(pen, color, width, points) {
  pen.strokeStyle = color;
  pen.lineWidth = width;
  pen.beginPath();
  for (const point of points) pen.lineTo(...point);
  pen.stroke();
}
