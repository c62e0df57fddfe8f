// The operator's page. It reads one stream of snapshots and draws each; it sends nothing and keeps nothing.
// Texts reach the page as text only (textContent), so nothing that a caller sent can become part of the document.
"use strict";

const STALE_MS = 5000;
const RETRY_MS = 2000;
const find = (selector) => document.querySelector(selector);

// -- making and changing elements

function element(tag, name, ...children) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  made.append(...children);
  return made;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Brings the children of `parent` into the order of `items`, reusing the node of each key: focus and scrolling stay.
function keyed(parent, items, keyOf, make, update) {
  const before = parent.nodes ?? new Map();
  parent.nodes = new Map(items.map((item) => [keyOf(item), before.get(keyOf(item)) ?? make(item)]));
  for (const [key, node] of before) if (!parent.nodes.has(key)) node.remove();
  let place = parent.firstChild;
  for (const item of items) {
    const node = parent.nodes.get(keyOf(item));
    update(node, item);
    if (node === place) place = place.nextSibling;
    else parent.insertBefore(node, place);
  }
}

function pairs(list, entries) {
  keyed(list, entries, (entry) => entry[0], ([name]) => element("div", "", element("dt", "", name), element("dd")), (node, [, value, mood]) => {
    setText(node.lastChild, value);
    node.lastChild.className = mood ?? "";
  });
}

// -- figures in words

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const number = (value) => (value === null || value === undefined ? "–" : whole.format(value));
const plural = (value, word) => `${number(value)} ${word}${value === 1 ? "" : "s"}`;

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0) return "over";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

// Of something that goes on: it need not flicker by the tenth of a second.
function age(seconds) {
  if (seconds === null || seconds < 0 || seconds >= 120) return duration(seconds);
  return seconds < 1 ? "<1 s" : `${Math.floor(seconds)} s`;
}

function rate(value) {
  if (value === null || value === undefined) return "–";
  return value < 10 ? value.toFixed(1) : whole.format(value);
}

const REASONS = {
  away: () => "no backend serves it now",
  blocks: (wait) => `needs ${plural(wait.needs_blocks, "block")}, ${number(Math.max(wait.free_blocks, 0))} free on ${wait.backend}`,
  seats: (wait) => `needs ${plural(wait.needs_seats, "seat")}, too few free on ${wait.backend}`,
  prompts: (wait) => `fits; ${wait.backend} computes as many prompts as it may`,
  cap: () => "fits; its lane or tenant holds as much as it may",
  collecting: () => "fits; the room is kept for one ahead",
  turn: () => "fits; others are ahead",
};

function whyItWaits(wait) {
  const reason = REASONS[wait.reason](wait);
  if (wait.is_collecting) return `${reason}; room collects for it`;
  return wait.passes ? `${reason}; passed ${plural(wait.passes, "time")}` : reason;
}

// -- backends

const laneNames = [];
function laneClass(lane) {
  if (!laneNames.includes(lane)) laneNames.push(lane);
  return `part-lane-${laneNames.indexOf(lane) % 6}`;
}

function makeCard() {
  const card = element("article", "card");
  card.head = element("div", "name", element("b"), element("span", "pill"), element("span", "who"), element("span", "share"));
  card.trouble = element("p", "trouble");
  card.bar = element("div", "bar");
  card.bar.setAttribute("role", "img");
  card.mark = element("span", "mark");
  card.parts = element("dl", "parts");
  card.facts = element("dl", "facts");
  card.append(card.head, card.trouble, card.bar, card.parts, card.facts);
  return card;
}

function drawCard(card, backend, held) {
  const [name, health, who, share] = card.head.children;
  card.dataset.backend = backend.name;
  setText(name, backend.name);
  health.dataset.state = backend.healthy ? "healthy" : "unhealthy";
  setText(health, backend.healthy ? "healthy" : "unhealthy");
  setText(who, [[backend.engine, backend.engine_version].filter(Boolean).join(" "), backend.models.join(", "), backend.url].filter(Boolean).join("  ·  "));
  const isPlanned = backend.budget_blocks !== null;
  setText(card.trouble, backend.healthy && isPlanned ? "" : backend.state);
  card.trouble.hidden = backend.healthy && isPlanned;
  card.bar.hidden = card.parts.hidden = !isPlanned;
  if (isPlanned) drawBudget(card, backend, held, share);
  else setText(share, "");
  pairs(card.facts, facts(backend));
}

function drawBudget(card, backend, held, share) {
  const lanes = Object.entries(held).filter(([, blocks]) => blocks > 0).sort(([one], [other]) => (one < other ? -1 : 1));
  const foreign = backend.foreign_blocks;
  const used = backend.engine_used_blocks;
  const scale = Math.max(backend.budget_blocks, backend.held_blocks + foreign, used ?? 0, 1);
  const reserve = Math.max(0, Math.min(backend.reserve_blocks, scale - backend.held_blocks - foreign));
  const segments = [
    ...lanes.map(([lane, blocks]) => [laneClass(lane), blocks]),
    ["part-foreign", foreign],
    ["part-reserve", reserve],
  ].filter(([, blocks]) => blocks > 0);
  keyed(card.bar, segments, ([kind]) => kind, ([kind]) => element("i", kind), (node, [, blocks]) => {
    node.style.width = `${(100 * blocks) / scale}%`;
  });
  card.mark.hidden = used === null;
  if (used !== null) card.mark.style.left = `${(100 * used) / scale}%`;
  card.bar.append(card.mark);
  const taken = backend.held_blocks + foreign;
  const grantable = Math.max(backend.budget_blocks - backend.reserve_blocks, 1);
  setText(share, `${Math.round((100 * taken) / grantable)} % taken`);
  card.bar.setAttribute("aria-label", `${backend.name}: ${taken} of ${backend.budget_blocks} blocks taken, ${backend.reserve_blocks} in reserve` + (used === null ? "" : `, the engine says ${used}`));
  card.bar.dataset.held = backend.held_blocks;
  pairs(card.parts, [
    ["held", number(backend.held_blocks)],
    ...(lanes.length > 1 ? lanes.map(([lane, blocks]) => [`in ${lane}`, number(blocks)]) : []),
    ["foreign", number(foreign)],
    ["free", number(Math.max(backend.free_blocks, 0))],
    ["reserve", number(backend.reserve_blocks)],
    ["budget", `${number(backend.budget_blocks)} blocks`],
    ["engine's gauge", number(used)],
  ]);
}

function facts(backend) {
  const said = [["in flight", number(backend.in_flight) + (backend.seats === null ? "" : ` of ${plural(backend.seats, "seat")}`)]];
  said.push(["at worst", plural(backend.worst_case_blocks, "block")]);
  if (backend.engine_running !== null) said.push(["engine", `${number(backend.engine_running)} running, ${number(backend.engine_waiting)} waiting`]);
  if (backend.engine_preemptions !== null) said.push(["preemptions", number(backend.engine_preemptions), backend.engine_preemptions > 0 ? "is-bad" : ""]);
  if (backend.ledger_gap !== null) {
    const parts = Object.entries(backend.ledger_gap).filter(([, blocks]) => blocks !== 0);
    const isBad = parts.some(([cause, blocks]) => cause !== "estimate" && blocks < 0);
    said.push(["gap to the engine", parts.map(([cause, blocks]) => `${blocks > 0 ? "+" : "−"}${number(Math.abs(blocks))} ${cause}`).join(", ") || "none", isBad ? "is-bad" : ""]);
  }
  const forecast = backend.forecast;
  if (forecast) {
    const how = backend.commitment === "forecast" ? `forecast, ${Math.round(100 * forecast.headroom)} % headroom` : "strict";
    said.push(["commitment", `${how}: ${forecast.why}`]);
  }
  const guards = backend.guards;
  if (guards) said.push(["unanswered prompts", `${number(guards.unanswered_tokens)} of ${plural(guards.unanswered_limit, "token")}`]);
  if (guards && guards.gap_s !== null) said.push(["token gap", duration(guards.gap_s) + (guards.gap_target_s === null ? "" : ` (target ${duration(guards.gap_target_s)})`)]);
  if (guards && guards.seat_limit !== null) said.push(["gap allows", plural(guards.seat_limit, "sequence")]);
  if (backend.block_tokens !== null) said.push(["block", plural(backend.block_tokens, "token")], ["context", number(backend.max_context)]);
  if (backend.budget_source !== null) said.push(["budget from", backend.budget_source]);
  if (backend.weighing !== null) said.push(["weighed", backend.weighing]);
  return said;
}

function drawKey(frame) {
  const lanes = new Set(Object.values(frame.held_by_lane).flatMap((held) => Object.keys(held)));
  if (!lanes.size) lanes.add(Object.keys(frame.state.lanes)[0] ?? "standard");
  const entries = [...lanes].sort().map((lane) => [laneClass(lane), `held in ${lane}`]);
  entries.push(["part-foreign", "foreign"], ["part-free", "free"], ["part-reserve", "reserve"], ["part-mark", "the engine's own gauge"]);
  keyed(find("#key"), entries, ([kind]) => kind, ([kind]) => element("li", kind), (node, [, text]) => setText(node, text));
}

// -- charts

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 300;
const HEIGHT = 60;
const CHARTS = [
  { id: "wait", title: "Queue wait", lines: { p50: "queue_wait_p50_s", p95: "queue_wait_p95_s" }, say: duration },
  { id: "ttft", title: "First token", lines: { p50: "ttft_p50_s", p95: "ttft_p95_s" }, say: duration },
  { id: "tokens", title: "Tokens per second", lines: { rate: "tokens_per_s" }, say: rate },
  { id: "refusals", title: "Refused per second", lines: { bars: "refused_per_s" }, say: rate },
];

function shape(tag, name) {
  const made = document.createElementNS(SVG, tag);
  made.setAttribute("class", name);
  return made;
}

function makeChart(chart) {
  const figure = element("figure");
  figure.id = `chart-${chart.id}`;
  const svg = shape("svg", "");
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("tabindex", "0");
  const base = shape("path", "base");
  base.setAttribute("d", `M0 ${HEIGHT}H${WIDTH}`);
  figure.at = shape("path", "at");
  figure.paths = Object.keys(chart.lines).map((kind) => shape("path", kind));
  svg.append(base, ...figure.paths, figure.at);
  figure.value = element("b");
  figure.when = element("span");
  figure.top = element("span");
  figure.append(
    element("figcaption", "", element("span", "", chart.title), figure.value),
    svg,
    element("div", "axis", figure.when, figure.top),
  );
  figure.svg = svg;
  figure.chosen = null;
  const choose = (step) => {
    figure.chosen = step;
    if (figure.drawn) drawChart(figure, ...figure.drawn);
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    choose(Math.round(((event.clientX - box.left) / box.width) * (figure.drawn[1].length - 1)));
  });
  svg.addEventListener("pointerleave", () => choose(null));
  svg.addEventListener("blur", () => choose(null));
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !figure.drawn) return;
    event.preventDefault();
    const last = figure.drawn[1].length - 1;
    choose(Math.min(last, Math.max(0, (figure.chosen ?? last) + step)));
  });
  return figure;
}

function drawChart(figure, chart, steps, step_s) {
  figure.drawn = [chart, steps, step_s];
  const kinds = Object.keys(chart.lines);
  const highest = Math.max(...steps.flatMap((step) => kinds.map((kind) => step[kind] ?? 0)));
  const top = highest || 1;
  const x = (index) => (index / (steps.length - 1)) * WIDTH;
  const y = (value) => HEIGHT - (value / top) * (HEIGHT - 4);
  kinds.forEach((kind, order) => {
    const draw = kind === "bars" ? bars : line;
    figure.paths[order].setAttribute("d", draw(steps.map((step) => step[kind]), x, y));
  });
  const last = steps.findLastIndex((step) => kinds.some((kind) => step[kind] !== null));
  const shown = figure.chosen ?? last;
  const value = shown < 0 ? "–" : kinds.map((kind) => (kinds.length > 1 ? `${kind} ${chart.say(steps[shown][kind])}` : chart.say(steps[shown][kind]))).join("  ");
  const ago = (steps.length - 1 - Math.max(shown, 0)) * step_s;
  setText(figure.value, value);
  setText(figure.when, figure.chosen === null ? `${duration(steps.length * step_s)} until now` : ago === 0 ? "now" : `${duration(ago)} ago`);
  setText(figure.top, highest ? `top ${chart.say(highest)}` : "");
  figure.at.setAttribute("d", figure.chosen === null ? "" : `M${x(shown)} 0V${HEIGHT}`);
  figure.svg.setAttribute("aria-label", `${chart.title}: ${value}; highest ${chart.say(highest)} in ${duration(steps.length * step_s)}`);
}

function line(values, x, y) {
  let path = "";
  let isOpen = false;
  values.forEach((value, index) => {
    if (value === null) {
      isOpen = false;
      return;
    }
    // A step without neighbours is a dot: a path of no length, drawn by its round end.
    path += `${isOpen ? "L" : "M"}${x(index).toFixed(1)} ${y(value).toFixed(1)}${isOpen ? "" : "h0"}`;
    isOpen = true;
  });
  return path;
}

function bars(values, x, y) {
  const width = (WIDTH / values.length) * 0.7;
  return values
    .map((value, index) => (value ? `M${Math.min(x(index), WIDTH - width).toFixed(1)} ${HEIGHT}V${y(value).toFixed(1)}h${width.toFixed(1)}V${HEIGHT}z` : ""))
    .join("");
}

function drawCharts(series) {
  keyed(find("#charts"), CHARTS, (chart) => chart.id, makeChart, (figure, chart) => {
    const kinds = Object.entries(chart.lines);
    const length = series[kinds[0][1]].length;
    const steps = Array.from({ length }, (_, index) => Object.fromEntries(kinds.map(([kind, name]) => [kind, series[name][index]])));
    drawChart(figure, chart, steps, series.step_s);
  });
}

// -- tables

// A column: heading, class of its cells, text of a row; draw instead of text where a cell is more than that.
const LINE = [
  ["#", "number", (wait) => number(wait.position + 1)],
  ["waits", "number", (wait) => age(wait.waits_s)],
  ["for", "text", whyItWaits],
  ["left", "number", (wait) => age(wait.left_s)],
  ["lane", "short wide", (wait) => wait.lane],
  ["tenant", "short", (wait) => wait.tenant],
  ["model", "short widest", (wait) => wait.model],
  ["request", "id widest", (wait) => wait.id],
];
const REFUSED = [
  ["ago", "number", (refusal) => age(refusal.ago_s)],
  ["reason", "reason", (refusal) => refusal.reason],
  ["what it was told", "text", (refusal) => refusal.message],
  ["blocks", "number", (refusal) => number(refusal.blocks)],
  ["waited", "number wide", (refusal) => duration(refusal.waited_s)],
  ["tenant", "short widest", (refusal) => refusal.tenant],
  ["request", "id widest", (refusal) => refusal.id],
];
const RUNNING = [
  ["age", "number", (run) => age(run.age_s)],
  ["phase", "short", (run) => `${run.phase} ${age(run.phase_s)}`],
  ["backend", "short wide", (run) => run.backend],
  ["blocks", "number", (run) => (run.charged_blocks === run.worst_blocks ? number(run.charged_blocks) : `${number(run.charged_blocks)} of ${number(run.worst_blocks)}`)],
  ["tokens", "number", (run) => `${number(run.output_tokens)} of ${run.cap_tokens === null ? "no cap" : number(run.cap_tokens)}`, drawProgress],
  ["prompt", "number wide", (run) => number(run.prompt_tokens)],
  ["lane", "short wide", (run) => run.lane],
  ["tenant", "short", (run) => run.tenant],
  ["model", "short wide", (run) => run.model],
  ["request", "id wide", (run) => run.id],
];

function drawProgress(cell, text, run) {
  if (!cell.text) {
    cell.text = element("span");
    cell.fill = element("i");
    cell.append(cell.text, element("span", "progress wide", cell.fill));
  }
  setText(cell.text, text);
  cell.lastChild.hidden = !run.cap_tokens;
  cell.fill.style.width = run.cap_tokens ? `${Math.min(100, (100 * run.output_tokens) / run.cap_tokens)}%` : "0";
}

// Refusals that waiting does not cure: the caller has to send something else.
const CALLERS = new Set(["invalid_request", "unauthorized", "unknown_model", "body_too_large", "upload_timeout", "context_length_exceeded", "kv_budget_exceeded"]);

function drawTable(selector, columns, rows, summary) {
  const section = find(selector);
  const table = section.querySelector("table");
  if (!table.tBodies.length) {
    const head = element("tr", "", ...columns.map(([name, kind]) => element("th", kind.replace(/\b(id|text|reason)\b/g, ""), name)));
    table.append(element("thead", "", head), element("tbody"));
  }
  keyed(table.tBodies[0], rows, (row) => row.id, () => element("tr", "", ...columns.map(([, kind]) => element("td", kind))), (node, row) => {
    node.classList.toggle("is-callers", CALLERS.has(row.reason));
    columns.forEach(([, , text, draw], index) => {
      const cell = node.children[index];
      if (draw) draw(cell, text(row), row);
      else setText(cell, text(row));
    });
  });
  section.querySelector(".empty").hidden = rows.length > 0;
  setText(section.querySelector(".count"), rows.length ? summary : "");
}

function drawList(selector, texts) {
  const unique = [...new Set(texts)];
  keyed(find(`${selector} ul`), unique, (text) => text, (text) => element("li", "", text), () => {});
  return unique.length;
}

function shownOf(rows, total) {
  return total > rows.length ? `${number(total)}, the first ${number(rows.length)} shown,` : number(rows.length);
}

function counted(names) {
  const counts = new Map();
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts].sort(([, one], [, other]) => other - one).map(([name, count]) => `${name} ${number(count)}`).join(", ");
}

// -- the whole page

function draw(frame) {
  const state = frame.state;
  setText(find("#version"), state.version);
  find("#draining").hidden = !state.draining;
  const mode = find("#mode");
  mode.hidden = state.mode !== "observe";
  mode.dataset.state = state.mode;
  setText(mode, "observe: nobody is refused");
  const sum = (names) => Object.entries(state.outcomes).reduce((total, [name, count]) => total + (names.test(name) ? count : 0), 0);
  pairs(find("#totals"), [
    ["up", duration(state.uptime_s)],
    ["running", number(state.in_flight)],
    ["in line", number(state.queue.requests)],
    ["completed", number(sum(/^(completed|capped)$/))],
    ["refused", number(sum(/^(refused_|timeout_queue)/))],
    ["failed", number(sum(/^(upstream_error|timeout_(first|stall|total)|gateway_error|engine_refused)/))],
  ]);
  find("#warnings").hidden = drawList("#warnings", state.warnings) === 0;
  drawKey(frame);
  keyed(find("#cards"), state.backends, (backend) => backend.name, makeCard, (card, backend) => drawCard(card, backend, frame.held_by_lane[backend.name] ?? {}));
  drawCharts(frame.series);
  const queue = state.queue;
  drawTable("#line", LINE, frame.waiting, `${shownOf(frame.waiting, queue.requests)} for ${plural(queue.blocks, "block")}, the oldest ${age(queue.oldest_s)}`);
  drawTable("#refused", REFUSED, frame.refusals, counted(frame.refusals.map((refusal) => refusal.reason)));
  drawTable("#running", RUNNING, frame.running, shownOf(frame.running, frame.running_total));
  find("#assumed .empty").hidden = drawList("#assumed", state.assumptions) > 0;
}

// -- the link to the gateway

let lastFrame = null;
let lastAt = null;
let isPaused = false;
let source = null;

function showLink(state, text) {
  const pill = find("#link");
  pill.dataset.state = state;
  setText(pill, text);
}

function lost() {
  const banner = find("#lost");
  setText(banner, lastAt === null
    ? "The gateway does not answer, or takes no more consoles. Trying again."
    : `The gateway is lost, for ${age((Date.now() - lastAt) / 1000)} now. What is shown is as it was then. Trying again.`);
  banner.hidden = false;
  document.body.classList.add("is-lost");
  showLink("lost", "lost");
}

function found() {
  find("#lost").hidden = true;
  document.body.classList.remove("is-lost");
  if (isPaused) showLink("paused", "paused");
  else if (lastFrame.state.draining) showLink("draining", "draining");
  else showLink("live", "live");
}

function connect() {
  source = new EventSource("console/events");
  source.onmessage = (event) => {
    lastFrame = JSON.parse(event.data);
    lastAt = Date.now();
    if (!isPaused) draw(lastFrame);
    found();
  };
  source.onerror = () => {
    lost();
    // After a refusal the browser does not try again by itself.
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, RETRY_MS);
  };
}

function pause() {
  isPaused = !isPaused;
  find("#pause").setAttribute("aria-pressed", String(isPaused));
  if (!isPaused && lastFrame) draw(lastFrame);
  if (lastFrame && !document.body.classList.contains("is-lost")) found();
}

setInterval(() => {
  // A connection can hang without an error: a gateway that has said nothing for so long is lost as well.
  if (lastAt !== null && Date.now() - lastAt > STALE_MS) lost();
}, 1000);

find("#pause").addEventListener("click", pause);
const PARTS = ["backends", "minutes", "line", "refused", "running", "assumed"];
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "p") pause();
  const part = PARTS[Number(event.key) - 1];
  if (part) {
    const heading = find(`#h-${part}`);
    heading.focus();
    heading.scrollIntoView({ block: "start" });
  }
});
connect();
