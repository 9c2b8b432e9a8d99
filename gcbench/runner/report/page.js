"use strict";

/* Everything that the page shows follows from `data`, which a block of JSON holds, and from the
   hash of its address, which every control writes. Texts become text nodes, never markup. */

const data = JSON.parse(document.getElementById("data").textContent);
const lowerIsBetter = new Set(data.lower);
const COLORS = 8;
const DASHES = ["", "7 3", "2 3", "9 3 2 3"];
const MARKS = { // by their names in matplotlib
  o: "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", // circle
  s: "M-3.7-3.7h7.4v7.4h-7.4z", // square
  "^": "M0-4.8L4.5 3.4h-9z",
  D: "M0-5L5 0L0 5L-5 0z", // diamond
  v: "M0 4.8L4.5-3.4h-9z",
  P: "M-1.5-5h3v3.5H5v3H1.500V5h-3V1.500H-5v-3h3.500z", // plus
  X: "M-4.600-2.500L-2.500-4.600L0-2.100L2.500-4.600L4.600-2.500L2.100 0L4.600 2.500L2.500 4.600L0 2.100L-2.500 4.600L-4.600 2.500L-2.100 0z",
  "<": "M-4.8 0L3.4-4.5v9z",
  ">": "M4.8 0L-3.4-4.5v9z",
  p: "M0-4.8L4.6-1.5L2.8 3.9h-5.6L-4.6-1.5z", // pentagon
  "*": "M0-5.5L1.3-1.8L5.200-1.7L2.100.700L3.200 4.500L0 2.200L-3.200 4.500L-2.100.700L-5.200-1.7L-1.3-1.8z",
};
const AXES = {
  step: "Steps",
  epoch: "Epochs",
  bits: "Sent by a worker (MiB)",
  seconds: "Measured training time (s)",
  link: "Time on the link below (s)",
};
const COLUMNS = {
  accuracy: "Accuracy, %", top5_accuracy: "Top-5, %", perplexity: "Perplexity",
  distance: "Distance", loss: "Loss", ratio: "Ratio, metered",
  bf16_ratio: "Ratio to bf16",
  received_ratio: "Ratio, received", analytic_ratio: "Ratio, paper's count",
  total_bits: "Sent, MiB", relative_error: "Relative error", vnmse: "vNMSE", cosine: "Cosine",
  step_milliseconds: "ms per step",
};
const FILTERS = { table: "table", model: "model", data: "data-set", budget: "budget" };
const ALL = "all";

const byId = (id) => document.getElementById(id);

// ---- Elements ----------------------------------------------------------------------------------

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  fill(node, attributes, children);
  return node;
}

function shape(name, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  fill(node, attributes, children);
  return node;
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "onclick" || key === "onchange") node[key] = value;
    else if (value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
}

// ---- Numbers -----------------------------------------------------------------------------------

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "-";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e9)) return value.toExponential(2);
  if (size >= 1e4 || Number.isInteger(value)) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(4)));
}

function duration(seconds) {
  if (seconds < 1e-3) return `${number(Number((1e6 * seconds).toPrecision(3)))} µs`;
  if (seconds < 1) return `${number(Number((1e3 * seconds).toPrecision(3)))} ms`;
  if (seconds < 120) return `${number(Number(seconds.toPrecision(3)))} s`;
  if (seconds < 7200) return `${number(Number((seconds / 60).toPrecision(3)))} min`;
  return `${number(Number((seconds / 3600).toPrecision(3)))} h`;
}

/* Mean, lowest and highest over the runs that are done; null where none has the measure. */
function summary(method, name) {
  const values = method.runs.filter((run) => run.status === "done")
    .map((run) => run.measures[name]).filter((value) => value !== undefined && value !== null);
  if (!values.length) return null;
  const scale = name === "total_bits" ? 1 / 2 ** 23 : 1;
  const scaled = values.map((value) => value * scale);
  return { mean: mean(scaled), low: Math.min(...scaled), high: Math.max(...scaled), n: values.length };
}

// ---- State: the hash of the address --------------------------------------------------------------

let state = new URLSearchParams(location.hash.slice(1));

function set(changes) {
  for (const [key, value] of Object.entries(changes)) {
    state.delete(key);
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined) state.append(key, one);
    }
  }
  history.replaceState(null, "", `#${state}`);
  render();
}

const get = (key) => state.get(key);

/* A number that was typed; the default where there is none, or none that makes sense. */
function typed(key, usual) {
  const value = parseFloat(get(key));
  return Number.isFinite(value) && value >= 0 ? value : usual;
}

function options(select, entries, chosen) {
  select.replaceChildren(...entries.map(([value, text]) => {
    const option = element("option", { value }, text);
    option.selected = value === chosen;
    return option;
  }));
}

// ---- Which runs ----------------------------------------------------------------------------------

const tablesOf = (setting) => [...new Set(setting.methods.flatMap((method) => method.tables))];

function matches(setting, but) {
  const has = { table: tablesOf(setting), model: [setting.model], data: [setting.data], budget: [setting.budget] };
  return Object.keys(FILTERS).every(
    (key) => key === but || !get(key) || get(key) === ALL || has[key].includes(get(key)),
  );
}

const inTable = (method) => !get("table") || get("table") === ALL || method.tables.includes(get("table"));

const methodsOf = (setting) => setting.methods.filter(inTable);

const richness = (setting) => {
  const [score] = scoresOf(setting);
  const points = Math.max(0, ...setting.methods.flatMap((m) => m.runs.map((r) => r.curves[score]?.y.length ?? 0)));
  return methodsOf(setting).length * (points > 1 ? 3 : 1);
};

function settings() {
  return data.settings.filter((setting) => matches(setting, null))
    .sort((a, b) => richness(b) - richness(a) || (a.id < b.id ? -1 : 1));
}

const title = (setting) => `${setting.model}, ${setting.data}, ${setting.title}, budget=${setting.budget}`;

function renderFilters(listed, chosen) {
  const values = {
    table: (setting) => tablesOf(setting), model: (setting) => [setting.model],
    data: (setting) => [setting.data], budget: (setting) => [setting.budget],
  };
  for (const [key, id] of Object.entries(FILTERS)) {
    const known = data.settings.filter((setting) => matches(setting, key)).flatMap(values[key]);
    const sorted = [...new Set(known)].sort();
    options(byId(id), [[ALL, ALL], ...sorted.map((value) => [value, value])], get(key) ?? ALL);
  }
  const entries = listed.map((setting) => [
    setting.id, `${title(setting)} (${methodsOf(setting).length})`,
  ]);
  options(byId("setting"), [...entries, [ALL, "all of them: table only"]], chosen);
}

// ---- Scores and curves -------------------------------------------------------------------------

/* The curves that a setting has, the main score first. */
function scoresOf(setting) {
  return data.curves.filter((name) => setting.methods.some((m) => m.runs.some((run) => run.curves[name])));
}

function isCurve(setting, name) {
  return setting.methods.some((m) => m.runs.some((run) => (run.curves[name]?.y.length ?? 0) > 1));
}

/* The points of one run: [x, y, step] over an axis; null where the run has no such axis. */
function pointsOf(run, method, name, axis, stepSeconds) {
  const curve = run.curves[name];
  if (run.status !== "done" || !curve) return null;
  const perStep = axis === "link" ? stepSeconds(method) : null;
  const xs = axis === "link" ? perStep && curve.step.map((step) => step * perStep.total) : curve[axis];
  if (!xs) return null;
  return xs.map((x, i) => [x, curve.y[i], curve.step[i]]).filter(([x, y]) => x !== null && y !== null);
}

/* Mean, lowest and highest of the seeds, at each step that all have: they lack those at which they
   are not finite. */
function bandOf(method, name, axis, stepSeconds) {
  const tracks = method.runs.map((run) => pointsOf(run, method, name, axis, stepSeconds)).filter(Boolean);
  if (!tracks.length) return null;
  const steps = tracks.map((track) => new Map(track.map((point) => [point[2], point])));
  return tracks[0].map((point) => steps.map((points) => points.get(point[2])))
    .filter((points) => points.every(Boolean)).map((points) => {
      const ys = points.map(([, y]) => y);
      return { x: mean(points.map(([x]) => x)), y: mean(ys), low: Math.min(...ys), high: Math.max(...ys) };
    });
}

/* Whether a method sends whole gradients in every step. Those that exchange in few steps, by knobs
   that the others of the setting do not share, may compress nothing either. */
const isDense = (method) => method.family === "none" && !["estimator.every", "estimator.max_every"].some((key) => key in method.knobs);

/* The best uncompressed one, those that no other method beats in both score and ratio, and as far
   as there are colors the best of other families. */
function best(methods, name) {
  const points = methods.map((method) => [method, summary(method, name), summary(method, "ratio")])
    .filter(([, score, ratio]) => score && ratio);
  const worse = (a, b) => (lowerIsBetter.has(name) ? a > b : a < b);
  points.sort(([, a], [, b]) => (worse(a.mean, b.mean) ? 1 : worse(b.mean, a.mean) ? -1 : 0));
  const beaten = ([, score, ratio]) => points.some(([, otherScore, otherRatio]) => (
    otherRatio.mean >= ratio.mean && worse(score.mean, otherScore.mean)
    || otherRatio.mean > ratio.mean && otherScore.mean === score.mean
  ));
  const dense = points.find(([method]) => isDense(method));
  const kept = new Set([...(dense ? [dense] : []), ...points.filter((point) => !beaten(point))]);
  const families = new Set([...kept].map(([method]) => method.family));
  for (const point of points) {
    if (!families.has(point[0].family)) kept.add(point);
    families.add(point[0].family);
  }
  return [...kept].slice(0, COLORS).map(([method]) => method.label);
}

function chosenOf(methods, name) {
  if (state.has("method")) return new Set(state.getAll("method"));
  return new Set(methods.length <= COLORS ? methods.map((method) => method.label) : best(methods, name));
}

/* Color, line and mark of the chosen ones: those of the method everywhere. */
function looks(methods, chosen) {
  return new Map(methods.filter((method) => chosen.has(method.label)).map((method) => [method.label, method.look]));
}

const dash = (look) => DASHES[look.nth % DASHES.length];
const className = (look) => (look === undefined ? "other" : `s${look.color}`);

function mark(look, x, y) {
  return shape("path", { class: "mark", d: MARKS[look?.mark ?? "o"], transform: `translate(${x} ${y})` });
}

function swatch(place) {
  const svg = shape("svg", { width: 34, height: 14, class: className(place), "aria-hidden": "true" });
  svg.append(shape("line", { class: "line", x1: 1, x2: 33, y1: 7, y2: 7, "stroke-dasharray": place === undefined ? "" : dash(place) }));
  if (place !== undefined) svg.append(mark(place, 17, 7));
  return svg;
}

function renderMethods(methods, chosen, look) {
  const ticked = (method) => chosen.has(method.label);
  const ordered = [...methods.filter(ticked), ...methods.filter((method) => !ticked(method))];
  byId("methods").replaceChildren(...ordered.map((method) => {
    const box = element("input", {
      type: "checkbox",
      onchange: () => {
        if (box.checked) chosen.add(method.label);
        else chosen.delete(method.label);
        set({ method: chosen.size ? [...chosen] : "" });
        [...byId("methods").querySelectorAll("input")].find((other) => other.value === method.label)?.focus();
      },
      value: method.label,
    });
    box.checked = ticked(method);
    return element("li", {}, element("label", { "data-method": method.label }, box, swatch(look.get(method.label)), method.label));
  }));
}

// ---- Charts ------------------------------------------------------------------------------------

const WIDTH = 860;
const HEIGHT = 400;
const MARGIN = { left: 66, right: 16, top: 12, bottom: 48 };

function scaleOf(values, log, from, to) {
  const usable = values.filter((value) => Number.isFinite(value) && (!log || value > 0));
  let low = Math.min(...usable);
  let high = Math.max(...usable);
  if (log) {
    if (low === high) [low, high] = [low / 2, high * 2];
    const [a, b] = [Math.log10(low), Math.log10(high)];
    const pad = (b - a) * 0.04;
    return { log, low: a - pad, high: b + pad, at: (value) => from + ((Math.log10(value) - a + pad) / (b - a + 2 * pad)) * (to - from) };
  }
  if (low === high) [low, high] = [low - 1, high + 1];
  const pad = (high - low) * 0.04;
  const start = low >= 0 && low - pad < 0 ? 0 : low - pad;
  return { log, low: start, high: high + pad, at: (value) => from + ((value - start) / (high + pad - start)) * (to - from) };
}

function ticksOf(scale, room) {
  if (!scale.log) {
    const rough = (scale.high - scale.low) / room;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    const ticks = [];
    for (let i = Math.ceil(scale.low / step); i * step <= scale.high; i += 1) ticks.push(Number((i * step).toPrecision(12)));
    return ticks;
  }
  const decades = scale.high - scale.low;
  const factors = decades > 3 ? [1] : decades > 1.2 ? [1, 3] : [1, 1.5, 2, 3, 4, 5, 6, 8];
  const ticks = [];
  for (let decade = Math.floor(scale.low); decade <= scale.high; decade += Math.max(1, Math.round(decades / room))) {
    for (const factor of factors) {
      const exponent = decade + Math.log10(factor);
      if (exponent >= scale.low && exponent <= scale.high) ticks.push(Number((factor * 10 ** decade).toPrecision(6)));
    }
  }
  const every = Math.ceil(ticks.length / room);
  return ticks.filter((_, i) => i % every === 0);
}

const tickText = (value) => (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6) ? value.toExponential().replace("e+", "e") : value.toLocaleString("en-US", { maximumSignificantDigits: 6 }));

/* Axes with names, ticks and a grid; returns the drawing and both scales. */
function frame(xs, ys, logx, logy, xName, yName, label) {
  const [left, right] = [MARGIN.left, WIDTH - MARGIN.right];
  const [top, bottom] = [MARGIN.top, HEIGHT - MARGIN.bottom];
  const x = scaleOf(xs, logx, left, right);
  const y = scaleOf(ys, logy, bottom, top);
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const tick of ticksOf(x, 8)) {
    svg.append(
      shape("line", { class: "grid", x1: x.at(tick), x2: x.at(tick), y1: top, y2: bottom }),
      shape("text", { class: "tick", x: x.at(tick), y: bottom + 17, "text-anchor": "middle" }, tickText(tick)),
    );
  }
  for (const tick of ticksOf(y, 7)) {
    svg.append(
      shape("line", { class: "grid", x1: left, x2: right, y1: y.at(tick), y2: y.at(tick) }),
      shape("text", { class: "tick", x: left - 7, y: y.at(tick) + 4, "text-anchor": "end" }, tickText(tick)),
    );
  }
  svg.append(
    shape("path", { class: "axis", fill: "none", d: `M${left} ${top}V${bottom}H${right}` }),
    shape("text", { x: (left + right) / 2, y: HEIGHT - 8, "text-anchor": "middle" }, xName),
    shape("text", { x: 0, y: 0, "text-anchor": "middle", transform: `translate(15 ${(top + bottom) / 2}) rotate(-90)` }, yName),
  );
  return { svg, x, y };
}

/* Draws groups of marks, gray ones first, and says below which one the pointer is next to. */
function show(place, svg, groups, usual) {
  const said = element("p", {}, usual);
  const ordered = [...groups].sort((a, b) => (a.look === undefined ? 0 : 1) - (b.look === undefined ? 0 : 1));
  for (const group of ordered) svg.append(group.node);
  svg.onpointermove = (event) => {
    const box = svg.getBoundingClientRect();
    const at = [(event.clientX - box.left) * WIDTH / box.width, (event.clientY - box.top) * HEIGHT / box.height];
    let nearest = null;
    for (const group of groups) {
      for (const spot of group.spots) {
        const distance = Math.hypot(spot.at[0] - at[0], spot.at[1] - at[1]);
        if (distance < (nearest?.distance ?? 40)) nearest = { distance, group, spot };
      }
    }
    for (const group of groups) group.node.classList.toggle("near", group === nearest?.group);
    for (const label of byId("methods").children) {
      label.firstChild.classList.toggle("near", label.firstChild.dataset.method === nearest?.group.name);
    }
    said.textContent = nearest ? `${nearest.group.name}: ${nearest.spot.text}` : usual;
  };
  byId(place).replaceChildren(svg, said);
}

/* What was switched; else what is usual: logarithmic are bits, and losses that fall far. */
const isLogarithmic = (key, usual) => (state.has(key) ? get(key) === "1" : usual);

const fallsFar = (values) => Math.min(...values) > 0 && Math.max(...values) > 5 * Math.min(...values);

function renderCurves(setting, methods, look, name, axis, stepSeconds) {
  const bands = methods.map((method) => [method, bandOf(method, name, axis, stepSeconds)]).filter(([, band]) => band?.length);
  const absent = methods.length - bands.length;
  if (!bands.length) {
    const why = axis === "seconds" ? "Virtual workers have no times: choose another axis." : "No run has such a curve.";
    byId("curves").replaceChildren(element("p", {}, why));
    return;
  }
  const every = bands.flatMap(([, band]) => band);
  const xs = every.map((point) => point.x);
  const ys = every.flatMap((point) => [point.low, point.high]);
  const logx = isLogarithmic("logx", axis === "bits");
  const logy = isLogarithmic("logy", name.endsWith("loss") && fallsFar(ys));
  byId("logx").checked = logx;
  byId("logy").checked = logy;
  const yName = setting.labels[name] ?? name;
  const { svg, x, y } = frame(xs, ys, logx, logy, AXES[axis], yName, `${yName} over ${AXES[axis]}, one line per method; the table of runs has the last scores`);
  const groups = bands.map(([method, band]) => {
    const place = look.get(method.label);
    const shown = band.filter((point) => (!logx || point.x > 0) && (!logy || point.low > 0));
    const node = shape("g", { class: `curve ${className(place)}`, "data-method": method.label, "data-points": shown.length });
    const spots = shown.map((point) => ({
      at: [x.at(point.x), y.at(point.y)], text: `${number(point.y)} at ${number(point.x)}`,
    }));
    if (place !== undefined && shown.some((point) => point.high > point.low)) {
      const edge = [...shown.map((point) => [point.x, point.high]), ...[...shown].reverse().map((point) => [point.x, point.low])];
      node.append(shape("path", { class: "band", d: `M${edge.map(([a, b]) => `${x.at(a).toFixed(1)} ${y.at(b).toFixed(1)}`).join("L")}Z` }));
    }
    const path = spots.map(({ at }) => `${at[0].toFixed(1)} ${at[1].toFixed(1)}`).join("L");
    node.append(shape("path", { class: "line", d: `M${path}`, "stroke-dasharray": place === undefined ? "" : dash(place) }));
    const gap = Math.max(1, Math.round(spots.length / 6));
    spots.forEach(({ at }, i) => {
      const marked = spots.length === 1 || (i + (place?.nth ?? 0)) % gap === 0 || i === spots.length - 1;
      if (marked && place !== undefined) node.append(mark(place, at[0].toFixed(1), at[1].toFixed(1)));
      else if (spots.length === 1) node.append(mark(undefined, at[0].toFixed(1), at[1].toFixed(1)));
    });
    return { name: method.label, look: place, node, spots };
  });
  const usual = absent ? `${absent} of ${methods.length} methods have no such curve. ` : "";
  show("curves", svg, groups, `${usual}Point at a line for its name and numbers.`);
}

const seeds = (n) => `${n} seed${n === 1 ? "" : "s"}`;

function renderTrade(setting, methods, look, name) {
  const points = methods.map((method) => [method, summary(method, "ratio"), summary(method, name)])
    .filter(([, ratio, score]) => ratio && score);
  if (!points.length) {
    byId("trade").replaceChildren(element("p", {}, "No run has a score and bits."));
    return;
  }
  const yName = setting.labels[name] ?? name;
  const { svg, x, y } = frame(
    points.map(([, ratio]) => ratio.mean), points.flatMap(([, , score]) => [score.low, score.high]),
    true, false, data.ratio_label, yName, `${yName} over the compression ratio, one mark per method`,
  );
  const groups = points.map(([method, ratio, score]) => {
    const place = look.get(method.label);
    const at = [x.at(ratio.mean), y.at(score.mean)];
    const node = shape("g", { class: `point ${className(place)}`, "data-method": method.label });
    if (score.high > score.low) {
      node.append(shape("line", { class: "spread", x1: at[0], x2: at[0], y1: y.at(score.low), y2: y.at(score.high) }));
    }
    node.append(mark(place, at[0].toFixed(1), at[1].toFixed(1)), shape("text", { class: "seeds", x: at[0] + 6, y: at[1] + 3 }, score.n));
    return { name: method.label, look: place, node, spots: [{ at, text: `${number(score.mean)} at ${number(ratio.mean)} x fewer bits than fp32, ${seeds(score.n)}` }] };
  });
  show("trade", svg, groups, "Beside a mark stands its number of seeds. Point at it for its name and numbers.");
}

// ---- Time to a goal ----------------------------------------------------------------------------

const usualLink = "1gbit";
const FEW = 5; // methods that a sentence names; more stand behind a click

function linkOf() {
  const preset = data.links.find((link) => link.name === (get("link") ?? usualLink)) ?? data.links[0];
  return {
    name: preset.name, source: preset.source,
    rate: typed("rate", preset.rate / 1e9) * 1e9,
    latency: typed("latency", preset.latency * 1e6) / 1e6,
  };
}

function codingOf(setting) {
  const measured = setting.methods.length > 0 && setting.methods.every((method) => "measured" in method.coding);
  const known = [...(measured ? ["measured"] : []), ...Object.keys(data.devices), "free"];
  const wanted = get("coding") ?? (measured ? "measured" : "quiet_core");
  return { known, chosen: known.includes(wanted) ? wanted : known[0] };
}

const usualCompute = (setting, coding) => setting.compute[coding] ?? setting.compute.measured ?? setting.compute.cpu ?? 0.1;

/* Seconds of one step of a method: computation, coding and exchange one after the other. */
function stepSecondsOf(setting) {
  const link = linkOf();
  const coding = codingOf(setting).chosen;
  const compute = typed("compute", usualCompute(setting, coding) * 1e3) / 1e3;
  return (method) => {
    const code = coding === "free" ? 0 : method.coding[coding];
    if (code === undefined || method.link_bits === null) return null;
    const exchange = method.messages * link.latency + method.link_bits / link.rate;
    return { compute, code, exchange, total: compute + code + exchange };
  };
}

/* Where a curve first reaches a goal, interpolated between two tests; null if it never does. */
function placeOf(xs, ys, goal, low) {
  let before = -1;
  for (let i = 0; i < ys.length; i += 1) {
    if (ys[i] === null) continue;
    if (low ? ys[i] <= goal : ys[i] >= goal) {
      return before < 0 ? xs[i] : xs[before] + (xs[i] - xs[before]) * (goal - ys[before]) / (ys[i] - ys[before]);
    }
    before = i;
  }
  return null;
}

/* The step at which each run reached the goal; null unless every run that is done got there. */
function stepsTo(method, name, goal) {
  const reached = method.runs.filter((run) => run.status === "done").map((run) => {
    const curve = run.curves[name];
    return curve ? placeOf(curve.step, curve.y, goal, lowerIsBetter.has(name)) : null;
  });
  return reached.length && reached.every((step) => step !== null) ? reached : null;
}

function renderGoal(setting, methods, look, stepSeconds) {
  const scores = scoresOf(setting).filter((name) => data.scores.includes(name));
  const name = scores.includes(get("goalscore")) ? get("goalscore") : scores[0];
  const link = linkOf();
  const coding = codingOf(setting);
  options(byId("goal-score"), scores.map((score) => [score, setting.labels[score]]), name);
  options(byId("link"), data.links.map((one) => [one.name, one.name]), link.name);
  options(byId("coding"), coding.known.map((one) => [one, one === "measured" ? "as measured" : one === "free" ? "takes no time" : data.devices[one]]), coding.chosen);
  const goal = typed("goal", setting.goals[name] ?? 0);
  const values = { goal, rate: link.rate / 1e9, latency: link.latency * 1e6, compute: Number((typed("compute", usualCompute(setting, coding.chosen) * 1e3)).toPrecision(4)) };
  for (const [id, value] of Object.entries(values)) {
    if (document.activeElement !== byId(id)) byId(id).value = value;
  }
  byId("goal-sense").textContent = lowerIsBetter.has(name) ? "at most" : "at least";
  const source = setting.compute[coding.chosen] ?? setting.compute.measured;
  byId("goal-note").replaceChildren(
    `${link.name}: ${link.source}. `,
    setting.workers > 1 ? `${setting.workers} workers, each on a host of its own, no overlap. ` : "One worker, which exchanges nothing. ",
    get("compute") ? "" : source ? "Computation is the median of what was measured there. " : "Nobody timed the computation of this setting: type your own. ",
    setting.oversubscribed ? "Its processes shared cores when they were timed. " : "",
    ...[["computing", "computation"], ["encoding", "coding"], ["exchanging", "exchange"]].map(
      ([kind, text]) => element("span", { class: "legend" }, element("span", { class: `key ${kind}` }), text),
    ),
  );
  const rows = methods.map((method) => {
    const steps = stepsTo(method, name, goal);
    const perStep = stepSeconds(method);
    const times = steps && perStep ? steps.map((step) => step * perStep.total) : null;
    return { method, steps, perStep, times, time: times ? mean(times) : Infinity };
  }).sort((a, b) => a.time - b.time);
  const longest = Math.max(...rows.filter((row) => row.times).map((row) => row.time), 0);
  const dense = rows.find((row) => isDense(row.method) && row.times);
  const body = rows.filter((row) => row.times).map(({ method, steps, perStep, times, time }) => {
    const cells = [element("td", {}, swatch(look.get(method.label)), " ", method.label)];
    const bar = shape("svg", { class: "bar", viewBox: "0 0 300 14", preserveAspectRatio: "none", "aria-hidden": "true" });
    let from = 0;
    for (const [part, share] of [["computing", perStep.compute], ["encoding", perStep.code], ["exchanging", perStep.exchange]]) {
      const width = (300 * time / longest) * (share / perStep.total);
      bar.append(shape("rect", { class: part, x: from, y: 0, width, height: 14 }));
      from += width;
    }
    cells.push(
      element("td", {}, bar),
      valueCell(time, duration(time), times.length > 1 && Math.min(...times) < Math.max(...times) ? ` [${duration(Math.min(...times))}, ${duration(Math.max(...times))}]` : ""),
      valueCell(dense ? dense.time / time : null, dense ? `${number(Number((dense.time / time).toPrecision(3)))} x` : "-"),
      valueCell(mean(steps), number(Math.round(mean(steps)))),
      valueCell(perStep.total, duration(perStep.total)),
      valueCell(perStep.exchange, duration(perStep.exchange)),
    );
    return element("tr", { "data-method": method.label }, ...cells);
  });
  const heads = ["Method", "", "Time to the goal", "Speed-up over none", "Steps", "A step", "of which exchange"];
  const said = [["Not reached by every seed", (row) => !row.steps], ["Without times of its coding", (row) => row.steps && !row.perStep]];
  const missing = said.map(([what, is]) => [what, rows.filter(is).map((row) => row.method.label)]).filter(([, labels]) => labels.length);
  byId("goal-missing").replaceChildren(...missing.map(([what, labels]) => (labels.length <= FEW
    ? element("p", {}, `${what}: ${labels.join(", ")}.`)
    : element("details", {}, element("summary", {}, `${what}: ${labels.length} methods`), `${labels.join(", ")}.`))));
  byId("goal-table").hidden = !body.length;
  byId("goal-table").replaceChildren(
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head || element("span", { "aria-label": "bar" }))))),
    element("tbody", {}, ...body),
  );
}

// ---- The map: who reaches a target first -----------------------------------------------------------

const MAP_RATES = Array.from({ length: 57 }, (_, i) => 10 ** (7.5 + i / 16));
const TIES = "seeds overlap";

const racesOf = () => data.races.map((race) => ({ ...race, id: `${race.table}, budget=${race.budget}` }));

/* The latency of an Ethernet at a rate, interpolated over log rates between the known ones. */
function latencyAt(rate) {
  const known = data.ethernets;
  const next = known.findIndex(([other]) => other >= rate);
  if (next <= 0) return known[next < 0 ? known.length - 1 : 0][1];
  const [[low, from], [high, to]] = [known[next - 1], known[next]];
  return from + (to - from) * Math.log(rate / low) / Math.log(high / low);
}

/* Methods by their mean time to a target on a link, each with its best exchange; the fastest first. */
function rank(race, steps, workers, rate, compute, larger) {
  const [latency, payload] = [latencyAt(rate), 0.95 * rate];
  return race.methods.map((method, i) => {
    if (!steps[i]) return null;
    const forms = Object.entries(method.costs).map(([exchange, costs]) => {
      const [messages, bits, coding] = costs[workers];
      const whole = messages * latency + larger ** method.power * bits / payload;
      const hidden = (1 - 1 / method.buckets) * race.backward_share * compute;
      return [compute + larger * coding + Math.max(whole - hidden, whole / method.buckets), exchange];
    });
    const [step, exchange] = forms.reduce((a, b) => (b[0] < a[0] ? b : a));
    const times = steps[i].map((count) => count * step);
    return { method, exchange, times, time: mean(times) };
  }).filter(Boolean).sort((a, b) => a.time - b.time);
}

/* Whether the slowest seed of the first is faster than any seed of the others. */
const isSure = ([first, ...others]) => Math.max(...first.times) < Math.min(...others.flatMap(({ times }) => times));

function renderMap() {
  const races = racesOf();
  byId("map").closest("section").hidden = !races.length;
  if (!races.length) return;
  const race = races.find(({ id }) => id === get("race")) ?? races[0];
  options(byId("race"), races.map(({ id }) => [id, id]), race.id);
  const [low, high] = [Math.min(...race.targets), Math.max(...race.targets)];
  const size = typed("map-size", race.parameters);
  const larger = size / race.parameters;
  const sliders = {
    "map-target": [typed("map-target", race.targets[0]), 0.9 * low, 1.2 * high, (value) => number(value)],
    "map-size": [Math.log10(size), Math.log10(race.parameters), Math.log10(race.parameters) + 3, (value) => `${number(10 ** value / 1e6)} million`],
    "map-compute": [Math.log10(typed("map-compute", race.compute_seconds * larger * 1e3)), 0, 7, (value) => duration(10 ** value / 1e3)],
    "map-link": [Math.log10(typed("map-link", 1e9)), 7.5, 11, (value) => `${number(10 ** value / 1e9)} Gbit/s`],
    "map-workers": [race.workers.indexOf(typed("map-workers", 16)), 0, race.workers.length - 1, (value) => String(race.workers[value])],
  };
  for (const [id, [value, min, max, text]] of Object.entries(sliders)) {
    Object.assign(byId(id), { min, max });
    if (document.activeElement !== byId(id)) byId(id).value = value;
    byId(`${id}-is`).textContent = text(value);
  }
  const target = sliders["map-target"][0];
  const compute = 10 ** sliders["map-compute"][0] / 1e3;
  // A schedule made for another score would be asked how soon it passes this one.
  const madeFor = race.made_for.some((ends) => target >= Math.min(...ends) && target <= Math.max(...ends));
  const steps = race.methods.map((method) => {
    const worse = Math.exp((method.per_decade ?? 0) * Math.log10(larger));
    const tried = madeFor ? method.curves.map((seeds) => seeds.map(([xs, ys]) => placeOf(xs, ys, target / worse, lowerIsBetter.has(race.score)))) : [];
    return tried.filter((reached) => reached.every((step) => step !== null)).sort((a, b) => mean(a) - mean(b))[0] ?? null;
  });
  const cells = race.workers.flatMap((workers, j) => MAP_RATES.map((rate, i) => {
    const ranked = rank(race, steps, workers, rate, compute, larger);
    const name = !ranked.length ? "nobody" : ranked.length > 1 && !isSure(ranked) ? TIES : ranked[0].method.label;
    return { i, j, name, margin: ranked.length > 1 ? ranked[1].time / ranked[0].time : Infinity };
  }));
  const area = (name) => cells.filter((cell) => cell.name === name).length;
  const names = [...new Set(cells.map(({ name }) => name))].filter((name) => name !== TIES && name !== "nobody").sort((a, b) => area(b) - area(a)).slice(0, COLORS - 1);
  const { svg, x, y } = frame([MAP_RATES[0] / 1e9, MAP_RATES.at(-1) / 1e9], [-0.5, race.workers.length - 0.5], true, false, "Link, Gbit/s", "Workers", `Who reaches ${race.score} ${number(target)} first, by link and workers`);
  svg.querySelectorAll(".tick[text-anchor=end]").forEach((tick) => { tick.textContent = race.workers[Number(tick.textContent)] ?? ""; });
  const [width, height] = [x.at(MAP_RATES[1]) - x.at(MAP_RATES[0]), y.at(0) - y.at(1)];
  for (const { i, j, name, margin } of cells) {
    const place = names.indexOf(name);
    svg.append(shape("rect", {
      class: `cell ${place < 0 ? "other" : `s${place + 1}`}`, "data-method": name, "data-margin": margin,
      x: x.at(MAP_RATES[i] / 1e9) - width / 2, y: y.at(j) - height / 2, width: width + 0.3, height: height + 0.3,
      "fill-opacity": place < 0 ? 1 : 0.35 + 0.65 * Math.min(1, (margin - 1) / 0.3),
    }));
  }
  for (const name of [...names, TIES, "nobody"]) {
    const [longest] = race.workers.map((_, j) => cells.filter((cell) => cell.j === j && cell.name === name)).sort((a, b) => b.length - a.length);
    if (longest.length < 6) continue;
    const at = (x.at(MAP_RATES[longest[0].i] / 1e9) + x.at(MAP_RATES[longest.at(-1).i] / 1e9)) / 2;
    svg.append(shape("text", { class: "direct", x: at, y: y.at(longest[0].j) + 4, "text-anchor": "middle" }, name));
  }
  const chosen = [10 ** sliders["map-link"][0], sliders["map-workers"][0]];
  svg.append(shape("circle", { class: "here", cx: x.at(chosen[0] / 1e9), cy: y.at(chosen[1]), r: 7 }));
  const ranked = rank(race, steps, race.workers[chosen[1]], chosen[0], compute, larger);
  const dense = ranked.find(({ method }) => method.dense);
  const said = ranked.map(({ method, exchange, time }) => element("li", { "data-method": method.label }, `${method.label}${exchange ? ` (${exchange})` : ""}: ${duration(time)}${dense ? `, ${number(Number((dense.time / time).toPrecision(3)))} x` : ""}`));
  const ends = race.made_for.map(([a, b]) => `${number(Math.min(a, b))} to ${number(Math.max(a, b))}`).join(", ");
  const late = !madeFor ? [] : race.methods.filter((_, i) => !steps[i]).map(({ label }) => label);
  const unknown = larger > 1 ? race.methods.filter((one) => !one.dense && one.per_decade === null).map(({ label }) => label) : [];
  byId("map").replaceChildren(svg);
  byId("map-order").replaceChildren(...said);
  byId("map-note").textContent = !madeFor ? `No kept run has a schedule that ends at ${number(target)}. Schedules of dense training end at ${ends}.` : `At the circle${ranked.length > 1 && !isSure(ranked) ? ", where the seeds of the first overlap with others" : ""}; x: times sooner than no compression.${late.length ? ` Never there in every seed: ${late.join(", ")}.` : ""}${unknown.length ? ` Not in the ladder, so as good as here with any size: ${unknown.join(", ")}.` : ""}`;
}

// ---- The answer: sigma / rho by c and the length of dense training ----------------------------------

const ANSWER_CS = Array.from({ length: 65 }, (_, i) => 10 ** (-2 + i / 16));
const BELOW = "below 1.05";
const OVERLAP = "intervals overlap";
const SOME = "one pays, unsure which";
const UNCOVERED = "not covered";

/* The time of a mean step in times of computing, with the fastest exchange. */
function stepOf(one, answer, c, workers, tokens, anyExchange) {
  const buckets = one.in_buckets && one.every === 1 ? answer.workload.buckets : 1;
  return Math.min(...Object.values(one.forms).filter((form) => form.same || anyExchange).map((form) => {
    const [bits, coding] = form.costs[workers];
    const exposed = Math.max(c * bits - (1 - 1 / buckets) * answer.workload.backward_share, c * bits / buckets);
    return 1 + (coding * answer.workload.tokens / tokens + exposed) / one.every;
  }));
}

/* Every method's sigma, rho and their quotient, with its limits. */
function speedups(answer, c, workers, size, length, tokens, anyExchange) {
  const dense = stepOf(answer.dense, answer, c, workers, tokens, false);
  return answer.methods.map((method) => {
    const sigma = dense / stepOf(method, answer, c, workers, tokens, anyExchange);
    const rho = method.rho[size][answer.workers.indexOf(workers)][length];
    const [value, low, high] = rho ?? [null, null, null];
    return {
      label: method.label, sigma, rho,
      value: value ? sigma / value : null, low: high ? sigma / high : 0, high: low ? sigma / low : Infinity,
    };
  });
}

/* Says whether the 95 % interval of the ratio of two speed-ups lies above 1; see predict/sigma.py. */
function isSurelyAbove(one, other) {
  if (one.value === null || other.value === null || !(one.low > 0)) return one.low > other.high;
  const halves = Math.hypot(Math.log(one.value / one.low), Math.log(other.high / other.value));
  return Math.log(one.value / other.value) > halves;
}

function judge(label, others) {
  const known = others.filter((one) => one.value !== null || one.high < Infinity);
  const dense = { label, value: 1, low: 1, high: 1 };
  const uncovered = others.length - known.length;
  const { least } = data.answers[0];
  const mayPay = known.some((one) => one.value === null && one.high >= least);
  if (!known.length || (mayPay && known.every((one) => one.value === null))) return { ...dense, why: UNCOVERED, uncovered: others.length };
  const ranked = [dense, ...known].sort((a, b) => (b.value ?? 0) - (a.value ?? 0));
  const sure = ranked.slice(1).every((one) => isSurelyAbove(ranked[0], one));
  const unsure = known.some((one) => one.low >= least) ? SOME : OVERLAP;
  const why = ranked[0].value < least ? (mayPay ? OVERLAP : BELOW) : sure ? "" : unsure;
  return { ...ranked[0], why, uncovered };
}

function renderAnswer() {
  byId("answer").closest("section").hidden = !data.answers.length;
  if (!data.answers.length) return;
  const [answer] = data.answers;
  const within = (id, usual, count) => Math.min(count - 1, Math.max(0, typed(id, usual)));
  const sliders = {
    "answer-c": [Math.log10(typed("answer-c", 10)), -2, 2, (value) => number(10 ** value)],
    "answer-workers": [within("answer-workers", answer.workers.indexOf(4), answer.workers.length), 0, answer.workers.length - 1, (value) => String(answer.workers[value])],
    "answer-size": [within("answer-size", 0, answer.parameters.length), 0, answer.parameters.length - 1, (value) => number(answer.parameters[value])],
    "answer-length": [within("answer-length", 0, answer.lengths.length), 0, answer.lengths.length - 1, (value) => number(answer.lengths[value])],
    "answer-tokens": [Math.log10(typed("answer-tokens", answer.workload.tokens)), 2, 6, (value) => number(Math.round(10 ** value))],
  };
  for (const [id, [value, min, max, text]] of Object.entries(sliders)) {
    Object.assign(byId(id), { min, max });
    if (document.activeElement !== byId(id)) byId(id).value = value;
    byId(`${id}-is`).textContent = text(value);
  }
  const anyExchange = get("answer-any") === "1";
  byId("answer-any").checked = anyExchange;
  const [c, place, size, length, tokens] = Object.values(sliders).map(([value]) => value);
  const workers = answer.workers[place];
  const all = (at, long) => speedups(answer, at, workers, size, long, 10 ** tokens, anyExchange);
  const cells = answer.lengths.flatMap((_, j) => ANSWER_CS.map((at, i) => ({ i, j, ...judge(answer.dense.label, all(at, j)) })));
  const area = (name) => cells.filter((cell) => cell.label === name && !cell.why).length;
  const names = [...new Set(cells.filter((cell) => !cell.why).map((cell) => cell.label))].sort((a, b) => area(b) - area(a)).slice(0, COLORS - 1);
  const { svg, x, y } = frame([ANSWER_CS[0], ANSWER_CS.at(-1)], [-0.5, answer.lengths.length - 0.5], true, false, "c: dense exchange / computing", "T", "What pays, by c and length of training");
  svg.querySelectorAll(".tick[text-anchor=end]").forEach((tick) => { tick.textContent = answer.lengths[Number(tick.textContent)] ?? ""; });
  const [width, height] = [x.at(ANSWER_CS[1]) - x.at(ANSWER_CS[0]), y.at(0) - y.at(1)];
  for (const cell of cells) {
    const nth = cell.why ? -1 : names.indexOf(cell.label);
    svg.append(shape("rect", {
      class: `cell ${cell.why === SOME ? "some" : nth < 0 ? "other" : `s${nth + 1}`}`, "data-method": cell.why || cell.label, "data-speedup": cell.value,
      x: x.at(ANSWER_CS[cell.i]) - width / 2, y: y.at(cell.j) - height / 2, width: width + 0.3, height: height + 0.3,
      "fill-opacity": cell.why === UNCOVERED ? 0.25 : cell.why === BELOW ? 0.6 : nth < 0 ? 1 : cell.uncovered ? 0.35 : 0.75,
    }));
  }
  answer.lengths.forEach((_, j) => {
    const row = cells.filter((cell) => cell.j === j);
    const nameOf = (cell) => cell.why || `${cell.label}: ${number(Number(cell.value.toPrecision(2)))}`;
    for (const kind of new Set(row.map((cell) => cell.why || cell.label))) {
      const some = row.filter((cell) => (cell.why || cell.label) === kind);
      if (some.length < 10) continue;
      const middle = some[Math.floor(some.length / 2)];
      svg.append(shape("text", { class: "direct", x: x.at(ANSWER_CS[middle.i]), y: y.at(j) + 4, "text-anchor": "middle" }, nameOf(middle)));
    }
  });
  for (const tick of answer.ticks) {
    if (tick.c < ANSWER_CS[0] || tick.c > ANSWER_CS.at(-1)) continue;
    svg.append(shape("line", { class: "grid", x1: x.at(tick.c), x2: x.at(tick.c), y1: y.at(answer.lengths.length - 0.5), y2: y.at(-0.5) }, shape("title", {}, tick.is)));
  }
  svg.append(shape("circle", { class: "here", cx: x.at(10 ** c), cy: y.at(length), r: 7 }));
  const ranked = all(10 ** c, length).sort((a, b) => (b.value ?? -1) - (a.value ?? -1));
  const digits = (value) => (value === null || value === undefined ? "?" : number(Number(value.toPrecision(3))));
  byId("answer-order").replaceChildren(...ranked.map(({ label, sigma, rho, value, low, high }) => element(
    "li", { "data-method": label },
    `${label}: sigma ${digits(sigma)}, rho ${!rho ? "not covered" : rho[0] ? `${digits(rho[0])} [${digits(rho[1])}, ${digits(rho[2])}]` : rho[1] ? `at least ${digits(rho[1])}` : `at most ${digits(rho[2])}`}`
    + (value ? `: ${digits(value)} times sooner [${digits(low || null)}, ${high < Infinity ? digits(high) : "?"}]` : ""),
  )));
  const here = judge(answer.dense.label, all(10 ** c, length));
  byId("answer").replaceChildren(svg);
  byId("answer-note").textContent = `At the circle: ${here.why || here.label}. From ${number(answer.runs)} runs of ${answer.table}; coding of device ${answer.device}; links without latency. c of the lines: ${answer.ticks.map((tick) => tick.is).join("; ")}.`;
}

// ---- The table of runs ---------------------------------------------------------------------------

function valueCell(value, text, spread = "") {
  const cell = element("td", { "data-value": value ?? "" }, text);
  if (spread) cell.append(element("span", { class: "spread-text" }, spread));
  return cell;
}

let opened = new Set();

function renderRuns(listed, everySetting) {
  const rows = listed.flatMap((setting) => methodsOf(setting).map((method) => ({ setting, method, id: `${setting.id} ${method.label}` })));
  const columns = Object.keys(COLUMNS).filter((name) => rows.some(({ method }) => summary(method, name)));
  const [usual] = columns;
  const [sort, order] = [get("sort") ?? usual, get("order") ?? (lowerIsBetter.has(get("sort") ?? usual) ? "ascending" : "descending")];
  const key = ({ method }) => (sort === "method" ? method.label : sort === "seeds" ? method.runs.length : summary(method, sort)?.mean ?? null);
  rows.sort((a, b) => {
    const [one, other] = [key(a), key(b)];
    if (one === null || other === null) return (one === null) - (other === null);
    const compared = typeof one === "string" ? one.localeCompare(other) : one - other;
    return order === "ascending" ? compared : -compared;
  });
  const head = (name, text) => element(
    "th", { scope: "col", "aria-sort": sort === name ? order : null },
    element("button", {
      type: "button", "data-sort": name,
      onclick: () => {
        const before = sort === name ? order : null;
        const first = name === "method" || lowerIsBetter.has(name) ? "ascending" : "descending";
        set({ sort: name, order: before === null ? first : before === "ascending" ? "descending" : "ascending" });
        byId("runs").querySelector(`button[data-sort="${CSS.escape(name)}"]`)?.focus();
      },
    }, text),
  );
  const body = rows.flatMap(({ setting, method, id }) => {
    const open = opened.has(id);
    const name = element("button", {
      type: "button", "aria-expanded": String(open),
      onclick: () => {
        if (open) opened.delete(id);
        else opened.add(id);
        renderRuns(listed, everySetting);
        [...byId("runs").querySelectorAll("tbody button")].find((button) => button.closest("tr").dataset.row === id)?.focus();
      },
    }, method.label);
    const done = method.runs.filter((run) => run.status === "done").length;
    const others = method.runs.filter((run) => run.status !== "done").map((run) => run.status);
    const line = element(
      "tr", { "data-row": id, "data-method": method.label },
      element("td", {}, name),
      everySetting ? element("td", { class: "setting" }, title(setting)) : null,
      element("td", { "data-value": done }, [done, ...others].join(", ")),
      ...columns.map((column) => {
        const value = summary(method, column);
        return valueCell(value?.mean, number(value?.mean ?? null), value && value.low < value.high ? ` [${number(value.low)}, ${number(value.high)}]` : "");
      }),
    );
    return open ? [line, detail(setting, method, 2 + columns.length + everySetting)] : [line];
  });
  byId("runs").replaceChildren(
    element("thead", {}, element(
      "tr", {}, head("method", "Method"), everySetting ? element("th", { scope: "col", class: "setting" }, "Setting") : null,
      head("seeds", "Seeds"), ...columns.map((name) => head(name, COLUMNS[name])),
    )),
    element("tbody", {}, ...body),
  );
}

function detail(setting, method, columns) {
  const knobs = Object.entries({ ...method.knobs, ...setting.knobs });
  const runs = method.runs.map((run) => element(
    "li", {}, `seed ${run.seed}: ${run.status}${run.reason ? ` (${run.reason})` : ""}, ${run.finished}, ${run.place}`,
  ));
  return element("tr", { class: "detail" }, element(
    "td", { colspan: columns },
    element("dl", {}, ...knobs.map(([key, value]) => element("div", {}, element("dt", {}, `${key}=`), element("dd", {}, value)))),
    method.tables.length ? element("p", {}, `In ${method.tables.join(", ")}.`) : null,
    element("ul", {}, ...runs),
  ));
}

// ---- The whole page ----------------------------------------------------------------------------

function render() {
  const listed = settings();
  const everySetting = get("setting") === ALL;
  const setting = listed.find((one) => one.id === get("setting")) ?? listed[0];
  renderFilters(listed, everySetting ? ALL : setting?.id);
  document.querySelector("main").hidden = everySetting || !setting;
  byId("goal-table").closest("section").hidden = everySetting || !setting;
  const shown = everySetting ? listed : setting ? [setting] : [];
  const count = shown.flatMap(methodsOf).flatMap((method) => method.runs).length;
  byId("status").textContent = everySetting
    ? `${count.toLocaleString("en")} runs of ${shown.length} settings. Scores of different settings cannot be compared: choose one for curves.`
    : setting ? `${title(setting)}: ${methodsOf(setting).length} methods, ${count} runs.` : "No run is left by these filters.";
  renderRuns(shown, everySetting);
  renderMap();
  renderAnswer();
  if (everySetting || !setting) return;
  const methods = methodsOf(setting);
  const scores = scoresOf(setting);
  const main = scores.find((score) => data.scores.includes(score)) ?? scores[0];
  const name = scores.includes(get("score")) ? get("score") : scores.find((score) => isCurve(setting, score)) ?? scores[0];
  const axis = get("axis") in AXES ? get("axis") : "bits";
  const chosen = chosenOf(methods, main);
  const look = looks(methods, chosen);
  const stepSeconds = stepSecondsOf(setting);
  options(byId("score"), scores.map((score) => [score, setting.labels[score]]), name);
  options(byId("axis"), Object.entries(AXES), axis);
  renderMethods(methods, chosen, look);
  byId("best").onclick = () => set({ method: best(methods, main) });
  byId("all").onclick = () => set({ method: methods.map((method) => method.label) });
  byId("none").onclick = () => set({ method: "" });
  renderCurves(setting, methods, look, name, axis, stepSeconds);
  const scored = data.scores.includes(main);
  for (const id of ["trade", "goal-table"]) byId(id).closest("section").hidden = !scored;
  if (!scored) return;
  renderTrade(setting, methods, look, main);
  renderGoal(setting, methods, look, stepSeconds);
}

const forget = { method: null, goal: null, goalscore: null, score: null, compute: null, coding: null };
for (const [key, id] of Object.entries(FILTERS)) {
  byId(id).onchange = (event) => set({ ...forget, setting: null, [key]: event.target.value });
}
byId("setting").onchange = (event) => set({ ...forget, setting: event.target.value });
byId("axis").onchange = (event) => set({ axis: event.target.value, logx: null });
byId("score").onchange = (event) => set({ score: event.target.value, logy: null });
byId("coding").onchange = (event) => set({ coding: event.target.value });
for (const id of ["logx", "logy"]) byId(id).onchange = (event) => set({ [id]: event.target.checked ? "1" : "0" });
for (const id of ["goal", "rate", "latency", "compute"]) byId(id).oninput = (event) => set({ [id]: event.target.value || null });
byId("goal-score").onchange = (event) => set({ goalscore: event.target.value, goal: null });
byId("race").onchange = (event) => set({ race: event.target.value, "map-target": null, "map-size": null, "map-compute": null });
for (const [id, value] of Object.entries({
  "map-target": (typedIn) => typedIn, "map-size": (power) => 10 ** power, "map-compute": (power) => 10 ** power, "map-link": (power) => 10 ** power,
  "map-workers": (place) => (racesOf().find((race) => race.id === get("race")) ?? racesOf()[0]).workers[place],
})) byId(id).oninput = (event) => set({ [id]: value(Number(event.target.value)) });
for (const [id, value] of Object.entries({
  "answer-c": (power) => 10 ** power, "answer-tokens": (power) => 10 ** power,
  "answer-workers": (place) => place, "answer-size": (place) => place, "answer-length": (place) => place,
})) byId(id).oninput = (event) => set({ [id]: value(Number(event.target.value)) });
byId("answer-any").onchange = (event) => set({ "answer-any": event.target.checked ? "1" : null });
byId("link").onchange = (event) => set({ link: event.target.value, rate: null, latency: null });
for (const form of document.forms) form.onsubmit = (event) => event.preventDefault();
window.onhashchange = () => {
  state = new URLSearchParams(location.hash.slice(1));
  render();
};
byId("about").textContent = `${data.runs.toLocaleString("en-US")} runs, drawn by gcbench report html. The address keeps what you choose: copy it to show somebody else.`;
render();
