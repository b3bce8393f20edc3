// Draws the decisions that the server sends. The page makes no decisions and counts no units. Between two messages
// it only advances the time: waits get shorter and buckets refill.

import { addressOf, fromAddress, TRAFFIC } from "/stories.js";
import { draw, shown } from "/timeline.js";

const NAMES = {
  sliding: ["Sliding window", (limit, period) => `never more than ${limit} in any ${period}`],
  fixed: ["Fixed window", (limit, period) => `${limit} per window of ${period}`],
  sliding_counter: ["Sliding counter", (limit, period) => `about ${limit} in any ${period}`],
  token_bucket: ["Token bucket", (limit, _, every) => `${limit} at once, then one every ${every}`],
  leaky_bucket: ["Leaky bucket", (limit, _, every) =>
    limit === 1 ? `one every ${every}` : `${limit} at once, then one every ${every}`],
};

const $ = (selector, root = document) => root.querySelector(selector);
const form = $("#settings");
const still = matchMedia("(prefers-reduced-motion: reduce)");

let session = null;
let settings = null;
let lanes = [];
/** The time of the session at `performance.now() === 0`, from the message with the least delay so far. */
let offset = -Infinity;
/** Whether the visitor has called since the last announcement to screen readers. */
let called = false;

const now = () => performance.now() + offset;

// --- Messages from the server

function connect() {
  const events = new EventSource("/events");
  const on = (name, act) => events.addEventListener(name, (event) => act(JSON.parse(event.data)));
  on("welcome", ({ id, has_redis }) => {
    session = id;
    offset = -Infinity;
    lanes.forEach((lane) => lane.clear());
    $("#store").hidden = !has_redis;
    $("#store-note").textContent = has_redis ? ""
      : "To try Redis as well, set RATELIMIT_REDIS_URL=redis://127.0.0.1:6379 and restart the playground.";
    trouble("");
    // After a lost connection the session is new, so it gets the settings of the form again.
    send();
  });
  on("settings", apply);
  on("forgotten", () => lanes.forEach((lane) => lane.clear()));
  on("seen", see);
  events.onerror = () => {
    session = null;
    trouble("The playground does not answer. Trying again.");
    // A browser does not reconnect after an error response, for example if the playground is full.
    if (events.readyState === EventSource.CLOSED) setTimeout(connect, 5000);
  };
}

function apply(given) {
  settings = given;
  if (!lanes.length) lanes = given.lanes.map((limit) => new Lane(limit));
  lanes.forEach((lane, index) => lane.take(given.lanes[index], given));
  showAttribute();
}

function see({ at, call, decided_by, lanes: seen }) {
  offset = Math.max(offset, at - performance.now());
  trouble(decided_by === "fallback"
    ? "Redis does not answer. Until it does, this process decides by the same limits, on separate counts."
    : "");
  lanes.forEach((lane, index) => lane.see(at, call, seen[index]));
  document.body.dataset.decidedBy = decided_by;
}

function trouble(text) {
  const place = $("#trouble");
  if (place.textContent !== text) place.textContent = text;
}

// --- Input of the visitor

const request = (method, what, body) => session && fetch(`/sessions/${session}/${what}`, {
  method, body, headers: body ? { "content-type": "application/json" } : {},
}).catch(() => null);

const filled = () => Object.fromEntries(new FormData(form));

function fill(settings) {
  for (const name in settings) form.elements[name].value = settings[name];
}

fill(fromAddress());
let accepted = filled();

async function put(settings) {
  const answer = await request("PUT", "settings", JSON.stringify(settings));
  return answer?.status === 422 ? answer.json() : [];
}

async function send() {
  const wanted = filled();
  history.replaceState(null, "", addressOf(wanted));
  text($("#story"), TRAFFIC[wanted.traffic].sentence);
  const chosen = (name) => $(`[name=${name}]:checked + span`, form).textContent;
  const rule = wanted.rule === "none" ? "" : ` · ${chosen("rule")}`;
  text($("#summary"), `${wanted.threshold} in ${wanted.period} · ${chosen("traffic")}${rule}`);
  const complaints = await put(wanted);
  if (complaints.length) {
    // The new traffic, store and rule still apply, with the last valid limit.
    const { threshold, period, burst } = accepted;
    put({ ...wanted, threshold, period, burst });
  } else {
    accepted = wanted;
  }
  for (const field of ["threshold", "period", "burst", "store"]) {
    const complaint = complaints.find((complaint) => complaint.field === field);
    $(`#${field}-error`).textContent = complaint?.message ?? "";
    if (field !== "store") form.elements[field].setAttribute("aria-invalid", Boolean(complaint));
  }
}

let typing;
form.addEventListener("input", (event) => {
  clearTimeout(typing);
  // A story sets the limit that shows it.
  if (event.target.name === "traffic") fill(TRAFFIC[event.target.value].limit ?? {});
  typing = setTimeout(send, event.target.type === "radio" ? 0 : 250);
});
form.addEventListener("submit", (event) => event.preventDefault());
$("#call").addEventListener("click", () => {
  called = true;
  request("POST", "calls");
});
$("#forget").addEventListener("click", () => request("DELETE", "counts"));

const select = $("#algorithm");
for (const algorithm in NAMES) select.add(new Option(NAMES[algorithm][0], algorithm));
select.addEventListener("change", showAttribute);

function showAttribute() {
  const limit = settings?.lanes.find((limit) => limit.algorithm === select.value);
  // Breaks lines only between arguments: `threshold = 5` stays together.
  const parts = (limit?.attribute ?? "").split(/(?<=, )/).map((part) => {
    const argument = document.createElement("span");
    argument.textContent = part;
    return argument;
  });
  $("#attribute").replaceChildren(...parts);
}

/** Copies a text. Without TLS, browsers allow only local pages to copy. On other pages, selects `place`. */
async function copy(button, wanted, place) {
  const name = button.textContent;
  const copied = await navigator.clipboard?.writeText(wanted).then(() => true, () => false);
  if (!copied && place) getSelection().selectAllChildren(place);
  button.textContent = copied ? "Copied" : place ? "Selected" : "See the address";
  setTimeout(() => (button.textContent = name), 2000);
}

$("#copy").addEventListener("click", ({ target }) => copy(target, $("#attribute").textContent, $("#attribute")));
$("#link").addEventListener("click", ({ target }) => copy(target, addressOf(filled())));

// The settings are open where they do not push the lanes out of sight.
const wide = matchMedia("(min-width: 861px)");
const unfold = () => ($("#controls").open = wide.matches);
wide.addEventListener("change", unfold);
unfold();

// --- A lane

class Lane {
  constructor({ algorithm }) {
    this.algorithm = algorithm;
    this.row = $("#lane").content.firstElementChild.cloneNode(true);
    this.row.dataset.algorithm = algorithm;
    $("strong", this.row).textContent = NAMES[algorithm][0];
    this.canvas = $("canvas", this.row);
    this.marks = [];
    this.windows = [];
    this.levels = [];
    $(".lanes").append(this.row);
  }

  take(limit, { period, period_ms, threshold }) {
    this.limit = limit;
    this.period = period_ms;
    const every = span(period_ms / threshold).replace(".0 ", " ").replace(/^1 s$/, "second").replace(" ", "\u00a0");
    $(".promise", this.row).textContent = NAMES[this.algorithm][1](limit.capacity, readable(period), every);
    // A cell for each unit, or a plain bar if there are too many units to tell apart.
    const cells = limit.capacity <= 24 ? limit.capacity : 1;
    $(".meter", this.row).style.setProperty("--cells", cells);
    if (this.seen) this.show();
  }

  clear() {
    [this.marks, this.windows, this.levels] = [[], [], []];
    this.seen = null;
  }

  see(at, call, seen) {
    this.seen = seen;
    this.resets = at + seen.reset;
    this.passes = at + seen.retry;
    if (call) this.marks.push({ at, allowed: seen.allowed });
    if (seen.reset > 0 && !this.algorithm.endsWith("bucket")) this.noteWindow(at);
    this.levels.push({ at, resets: this.resets, fill: this.limit.fill_ms });
    // Under these rules, nothing is counted.
    if (isUncounted()) [this.windows, this.levels] = [[], []];
    const past = at - shown(this.period);
    for (const kept of [this.marks, this.levels]) while (kept[1]?.at < past) kept.shift();
    while (this.windows[0]?.end < past) this.windows.shift();
    this.show();
  }

  /** Records the current window. It ends when the count resets; for the sliding counter, one period earlier. */
  noteWindow(at) {
    const left = this.algorithm === "sliding_counter" ? this.seen.reset % this.period : this.seen.reset;
    const [start, end] = [at + left - this.period, at + left];
    const last = this.windows.at(-1);
    if (last && Math.abs(last.end - end) < 40) return;
    if (last?.end > start) last.end = start;
    this.windows.push({ start, end });
  }

  show() {
    const { remaining, admitted, refused } = this.seen;
    const { capacity } = this.limit;
    text($(".remaining b", this.row), isUncounted() ? "" : remaining);
    text($(".remaining span", this.row), isUncounted() ? `${settings.rule} by the rule` : `of ${capacity} left`);
    $(".meter i", this.row).style.setProperty("--left", Math.min(1, remaining / capacity));
    text($(".tally .admitted b", this.row), admitted);
    text($(".tally .refused b", this.row), refused);
    text($(".strip .unseen", this.row), `${this.marks.length} ${this.marks.length === 1 ? "call" : "calls"} shown`);
    this.tick();
  }

  /** Returns the wait in words: "now", or "in 3 s". */
  wait() {
    if (settings.rule === "blocked") return "once it is unblocked";
    // The units decide, and not the clock of the page: the next message brings the units.
    return this.seen.remaining ? "now" : `in ${span(Math.max(this.passes - now(), 100))}`;
  }

  tick() {
    if (!this.seen) return;
    const wait = this.wait();
    text($(".next span:last-child", this.row), `passes ${wait}`);
    this.open = wait === "now";
    this.row.classList.toggle("blocked", !this.open);
  }

  inWords() {
    const { admitted, refused } = this.seen;
    const name = NAMES[this.algorithm][0];
    return `${name}: ${admitted} admitted, ${refused} rejected, next call passes ${this.wait()}.`;
  }
}

/** Whether a rule decides without the count. */
const isUncounted = () => settings.rule === "blocked" || settings.rule === "exempt";

function text(place, value) {
  if (place.textContent !== String(value)) place.textContent = value;
}

const readable = (period) => period.replace(/([a-z]+)$/, " $1");

/** Returns a wait in words, rounded up, so that a call after this time is never too early. */
function span(ms) {
  if (ms < 10000) return `${(Math.ceil(ms / 100 - 1e-6) / 10).toFixed(1)} s`;
  if (ms < 120000) return `${Math.ceil(ms / 1000)} s`;
  return ms < 7200000 ? `${Math.ceil(ms / 60000)} min` : `${Math.ceil(ms / 3600000)} h`;
}

// --- Announcements for screen readers: soon after a call of the visitor, otherwise every ten seconds

let told = 0;
let seconds = 0;
setInterval(() => {
  seconds += 1;
  if (!lanes[0]?.seen || !(called || seconds >= 10)) return;
  const calls = lanes[0].seen.admitted + lanes[0].seen.refused;
  if (calls !== told) text($("#news"), lanes.map((lane) => lane.inWords()).join(" "));
  [told, seconds, called] = [calls, 0, false];
}, 1000);

// --- Animation

function frame(time) {
  // Draws about thirty frames per second, which is smooth here; with reduced motion, two.
  if (time - frame.last >= (still.matches ? 500 : 30)) {
    frame.last = time;
    lanes.forEach((lane) => lane.tick());
    if (settings) draw(lanes, $(".ruler canvas"), settings.period_ms, now());
  }
  requestAnimationFrame(frame);
}
frame.last = 0;
requestAnimationFrame(frame);

connect();
