// Transport: the plan between points or histograms as eps decreases, and SwAV's assignment of a batch.
import { $, latest, numbers, percent, post, read_state, sliders, write_state } from "./base.js";
import { backdrop, matrix } from "./draw.js";

const EPS = { label: "eps", min: 0.002, max: 1, step: 0.02, value: 0.05, log: true };
const SLIDERS = {
  points: { eps: EPS, count: { label: "points in each set", min: 2, max: 24, step: 1, value: 12, whole: true } },
  histograms: { eps: EPS, count: { label: "bins", min: 4, max: 32, step: 1, value: 16, whole: true } },
  swav: {
    eps: { ...EPS, value: 0.05 }, iterations: { label: "iterations", min: 1, max: 60, step: 1, value: 3, whole: true },
    samples: { label: "samples", min: 8, max: 128, step: 1, value: 48, whole: true },
    prototypes: { label: "prototypes", min: 2, max: 16, step: 1, value: 6, whole: true },
  },
};
const HINTS = {
  points: "Drag the points, or focus the picture: space picks the next one, arrow keys move it. Mass moves from circles to squares; a wider line is more mass.",
  histograms: "Drag over the bars to change them, or focus the picture and use the arrow keys. Mass moves from the upper histogram to the lower one.",
  swav: "Samples are dots on the circle, prototypes are spokes. By the nearest prototype, some prototypes get no samples; Sinkhorn's codes balance the batch.",
};
let kind, values, seed, x = [], y = [], result = null, ladder = null, chosen = 0;

// A linear congruential generator, so that a seed in the URL gives the same points everywhere.
function random(seed) {
  let a = seed + 1;
  return () => { a = (a * 1664525 + 1013904223) % 4294967296; return a / 4294967296; };
}

export async function start_transport() {
  for (const radio of document.getElementsByName("kind")) {
    radio.addEventListener("change", () => { write_state({ kind: radio.value, set: "" }, "step"); set_up(); });
  }
  $("shuffle").addEventListener("click", () => { seed = (seed + 1) % 10000; write_state({ seed, set: "" }, "step"); draw_again(); update(true); });
  pointer();
  await restore_transport();
}

// The view that the address holds.
export async function restore_transport() {
  const state = read_state(), shown = SLIDERS[state.kind] ? state.kind : "points";
  seed = Math.max(0, parseInt(state.seed, 10) || 0) % 10000;
  for (const radio of document.getElementsByName("kind")) radio.checked = radio.value === shown;
  await set_up();
}

async function set_up() {
  kind = document.querySelector("[name=kind]:checked").value;
  values = sliders($("move-sliders"), SLIDERS[kind], name => { if (name === "count") { write_state({ set: "" }); draw_again(); update(true); } else update(false); }, "t.");
  $("move-hint").textContent = HINTS[kind];
  draw_again();
  await update(true);
}

function draw_again() {
  const next = random(seed), n = values.count;
  for (let i = 0; i < 5; i += 1) next();
  if (kind === "points") {
    x = Array.from({ length: n }, () => [0.08 + 0.4 * next(), 0.1 + 0.8 * next()]);
    y = Array.from({ length: n }, () => [0.52 + 0.4 * next(), 0.1 + 0.8 * next()]);
  } else if (kind === "histograms") {
    const bump = (middle, wide) => Array.from({ length: n }, (_, i) => Math.exp(-(((i + 0.5) / n - middle) ** 2) / (2 * wide ** 2)));
    const two = (one, other) => one.map((v, i) => v + 0.6 * other[i]);
    x = bump(0.15 + 0.25 * next(), 0.06 + 0.06 * next());
    y = two(bump(0.55 + 0.1 * next(), 0.06), bump(0.75 + 0.2 * next(), 0.06));
  }
  chosen = 0;
  from_address();
}

// Data changed by hand is in the URL too: all numbers in a row, the first set before the second.
function to_address() { write_state({ set: [...x.flat(), ...y.flat()].map(v => +v.toFixed(3)).join("_") }, "drag"); }
function from_address() {
  const stored = (read_state().set || "").split("_").map(Number), flat = [x, y].map(s => s.flat().length);
  if (kind === "swav" || stored.length !== flat[0] + flat[1] || !stored.every(v => v >= 0 && v <= 1e6)) return;
  const fill = (set, numbers) => set.forEach((v, i) => { set[i] = Array.isArray(v) ? [Math.min(numbers[2 * i], 1), Math.min(numbers[2 * i + 1], 1)] : numbers[i]; });
  fill(x, stored.slice(0, flat[0])); fill(y, stored.slice(flat[0]));
}

const send = latest(async with_ladder => {
  if (kind === "swav") {
    result = (await post("api/assign", { seed, ...values })).data; ladder = null;
  } else {
    const sets = kind === "points" ? { x, y } : { a: x, b: y };
    result = (await post("api/transport", { kind, ...sets, eps: values.eps, ladder: with_ladder })).data;
    if (with_ladder) ladder = result.ladder;
  }
  paint();
});
async function update(with_ladder) { await send(with_ladder || !ladder); }

function paint() {
  if (!result || (kind === "swav") !== Boolean(result.codes)) return;
  const swav = kind === "swav";
  $("ladder-canvas").parentElement.hidden = false;
  matrix($("plan-canvas"), swav ? result.codes : result.plan);
  const common = [["iterations", String(result.iterations)], ["marginal error", result.residual.toExponential(1)], ["converged", result.converged ? "yes" : "no"]];
  if (swav) {
    circle();
    shares();
    numbers($("move-numbers"), [["largest share, nearest", percent(Math.max(...result.nearest))], ["largest share, codes", percent(Math.max(...result.shares))], ...common]);
    $("move-caption").textContent = "Samples in the colour of the prototype with their largest code";
    $("ladder-caption").textContent = "Share of the batch per prototype: by the nearest prototype (light), by Sinkhorn's codes (dark)";
    return;
  }
  if (kind === "points") lines(); else bars();
  steps();
  numbers($("move-numbers"), [["distance", result.distance.toFixed(4)], ...(result.exact == null ? [] : [["exact W2", result.exact.toFixed(4)]]), ...common]);
  $("move-caption").textContent = kind === "points" ? "From circles to squares" : "From the upper to the lower histogram";
  $("ladder-caption").textContent = "Distance as eps decreases: square root of the plan's cost, and debiased (dashed)" + (result.exact == null ? "" : "; the dotted line is the exact distance");
}

const INK = { one: "#8fd3de", two: "#f2d45c", line: "#cfd6d8" };

function lines() {
  const canvas = $("move-canvas"), g = backdrop(canvas), { width, height } = canvas, top = Math.max(...result.plan.flat());
  result.plan.forEach((row, i) => row.forEach((mass, j) => {
    if (mass < 0.01 * top) return;
    g.globalAlpha = 0.12 + 0.8 * mass / top; g.lineWidth = 0.5 + 4 * mass / top; g.strokeStyle = INK.line;
    g.beginPath(); g.moveTo(x[i][0] * width, x[i][1] * height); g.lineTo(y[j][0] * width, y[j][1] * height); g.stroke();
  }));
  g.globalAlpha = 1;
  g.fillStyle = INK.one;
  for (const [a, b] of x) { g.beginPath(); g.arc(a * width, b * height, 8, 0, 7); g.fill(); }
  g.fillStyle = INK.two;
  for (const [a, b] of y) g.fillRect(a * width - 7, b * height - 7, 14, 14);
  const [a, b] = [...x, ...y][chosen] || x[0];
  g.strokeStyle = "#fff"; g.lineWidth = 2; g.strokeRect(a * width - 12, b * height - 12, 24, 24);
}

function bars() {
  const canvas = $("move-canvas"), g = backdrop(canvas), { width, height } = canvas, n = x.length, wide = width / n;
  const tall = Math.max(...x, ...y, 1e-9), top = Math.max(...result.plan.flat());
  result.plan.forEach((row, i) => row.forEach((mass, j) => {
    if (mass < 0.02 * top) return;
    g.globalAlpha = 0.1 + 0.7 * mass / top; g.lineWidth = 0.5 + 4 * mass / top; g.strokeStyle = INK.line;
    g.beginPath(); g.moveTo((i + 0.5) * wide, 0.36 * height); g.lineTo((j + 0.5) * wide, 0.64 * height); g.stroke();
  }));
  g.globalAlpha = 1;
  g.fillStyle = INK.one; x.forEach((v, i) => { const h = 0.32 * height * v / tall; g.fillRect(i * wide + 1, 0.36 * height - h, wide - 2, h); });
  g.fillStyle = INK.two; y.forEach((v, i) => { const h = 0.32 * height * v / tall; g.fillRect(i * wide + 1, 0.64 * height, wide - 2, h); });
  g.strokeStyle = "#fff"; g.lineWidth = 2;
  g.strokeRect((chosen % n) * wide, (chosen < n ? 0.03 : 0.64) * height, wide, 0.33 * height);
}

const HUES = k => Array.from({ length: k }, (_, i) => `hsl(${Math.round(360 * i / k)} 65% ${55 + 22 * (i % 2)}%)`);

function circle() {
  const canvas = $("move-canvas"), g = backdrop(canvas), { width } = canvas, half = width / 2, hues = HUES(result.prototypes.length);
  result.prototypes.forEach((angle, k) => {
    g.strokeStyle = g.fillStyle = hues[k]; g.lineWidth = 3;
    const [a, b] = [half + 0.6 * half * Math.cos(angle), half + 0.6 * half * Math.sin(angle)];
    g.beginPath(); g.moveTo(half, half); g.lineTo(a, b); g.stroke();
    g.font = "600 15px system-ui"; g.textAlign = "center"; g.textBaseline = "middle";
    g.fillText(String(k + 1), half + 0.68 * half * Math.cos(angle), half + 0.68 * half * Math.sin(angle));
  });
  result.samples.forEach((angle, i) => {
    const codes = result.codes[i], k = codes.indexOf(Math.max(...codes)), out = 0.82 + 0.1 * ((i * 7) % 5) / 5;
    g.fillStyle = hues[k]; g.beginPath(); g.arc(half + out * half * Math.cos(angle), half + out * half * Math.sin(angle), 6, 0, 7); g.fill();
  });
}

function axes_ink() { const style = getComputedStyle(document.body); return [style.color, style.getPropertyValue("--soft"), style.getPropertyValue("--accent"), style.getPropertyValue("--line")]; }

function shares() {
  const canvas = $("ladder-canvas"), g = canvas.getContext("2d"), { width, height } = canvas, k = result.shares.length, wide = (width - 80) / k;
  const [ink, soft, accent, line] = axes_ink(), top = Math.max(...result.nearest, ...result.shares, 1e-9), tall = height - 60;
  g.clearRect(0, 0, width, height); g.font = "14px system-ui"; g.textAlign = "center";
  result.shares.forEach((share, i) => {
    const left = 60 + i * wide, a = tall * result.nearest[i] / top, b = tall * share / top;
    g.fillStyle = line; g.fillRect(left + 0.1 * wide, 24 + tall - a, 0.36 * wide, a);
    g.fillStyle = accent; g.fillRect(left + 0.5 * wide, 24 + tall - b, 0.36 * wide, b);
    g.fillStyle = ink; g.fillText(String(i + 1), left + wide / 2, height - 12);
  });
  g.strokeStyle = soft; g.setLineDash([5, 4]); g.beginPath();
  const even = 24 + tall * (1 - 1 / k / top); g.moveTo(50, even); g.lineTo(width - 10, even); g.stroke(); g.setLineDash([]);
  g.fillStyle = soft; g.textAlign = "right"; g.fillText("even", 46, even + 4);
}

function steps() {
  if (!ladder) return;
  const canvas = $("ladder-canvas"), g = canvas.getContext("2d"), { width, height } = canvas, [ink, soft, accent, line] = axes_ink();
  const tops = Math.max(...ladder.map(r => Math.max(r.distance, r.debiased)), result.exact || 0) * 1.08 || 1;
  const across = eps => 70 + (width - 110) * (Math.log(eps) - Math.log(ladder[0].eps)) / (Math.log(ladder.at(-1).eps) - Math.log(ladder[0].eps));
  const up = d => height - 40 - (height - 60) * d / tops;
  g.clearRect(0, 0, width, height); g.font = "14px system-ui"; g.textAlign = "center"; g.fillStyle = soft;
  for (const r of ladder) g.fillText(String(r.eps), across(r.eps), height - 14);
  g.textAlign = "right";
  for (let i = 0; i <= 4; i += 1) {
    const d = tops * i / 4;
    g.fillText(d.toFixed(2), 56, up(d) + 4); g.strokeStyle = line; g.beginPath(); g.moveTo(64, up(d)); g.lineTo(width - 20, up(d)); g.stroke();
  }
  const curve = (key, style, dash) => {
    g.strokeStyle = g.fillStyle = style; g.lineWidth = 2.5; g.setLineDash(dash); g.beginPath();
    ladder.forEach((r, i) => g[i ? "lineTo" : "moveTo"](across(r.eps), up(r[key]))); g.stroke(); g.setLineDash([]);
    for (const r of ladder) { g.beginPath(); g.arc(across(r.eps), up(r[key]), 4, 0, 7); g.fill(); }
  };
  curve("distance", accent, []); curve("debiased", ink, [7, 5]);
  g.lineWidth = 1.5; g.strokeStyle = ink;
  if (result.exact != null) { g.setLineDash([2, 3]); g.beginPath(); g.moveTo(64, up(result.exact)); g.lineTo(width - 20, up(result.exact)); g.stroke(); g.setLineDash([]); }
  g.strokeStyle = soft; g.beginPath(); g.moveTo(across(values.eps), 12); g.lineTo(across(values.eps), height - 36); g.stroke();
  g.textAlign = "left"; g.fillStyle = accent; g.fillText("cost of the plan", 78, 24); g.fillStyle = ink; g.fillText("debiased (dashed)", 210, 24);
}

function pointer() {
  const canvas = $("move-canvas");
  let dragged = null;
  const at = event => { const area = canvas.getBoundingClientRect(); return [(event.clientX - area.left) / area.width, (event.clientY - area.top) / area.height].map(v => Math.min(Math.max(v, 0), 1)); };
  const pull = event => {
    const [a, b] = at(event);
    if (kind === "points" && dragged) { dragged[0] = +a.toFixed(3); dragged[1] = +b.toFixed(3); to_address(); update(true); }
    if (kind === "histograms") {
      const i = Math.min(Math.floor(a * x.length), x.length - 1), tall = Math.max(...x, ...y, 1e-9);
      if (b < 0.5) x[i] = tall * Math.min(Math.max((0.36 - b) / 0.32, 0), 1); else y[i] = tall * Math.min(Math.max((b - 0.64) / 0.32, 0), 1);
      to_address(); update(true);
    }
  };
  canvas.addEventListener("pointerdown", event => {
    const [a, b] = at(event), near = [...x, ...y].filter(Array.isArray).map(p => [Math.hypot(p[0] - a, p[1] - b), p]).sort((p, q) => p[0] - q[0])[0];
    dragged = kind === "points" && near && near[0] < 0.06 ? near[1] : null;
    canvas.setPointerCapture(event.pointerId);
    pull(event);
  });
  canvas.addEventListener("pointermove", event => { if (canvas.hasPointerCapture(event.pointerId)) pull(event); });
  canvas.addEventListener("pointerup", () => { dragged = null; });
  canvas.addEventListener("keydown", event => {
    const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] || [];
    if (kind === "swav" || (dx === undefined && event.key !== " ")) return;
    event.preventDefault();
    const all = [...x, ...y];
    if (event.key === " " || (kind === "histograms" && dx)) { chosen = (chosen + (dx || 1) + all.length) % all.length; paint(); return; }
    if (kind === "points") { all[chosen][0] = +Math.min(Math.max(all[chosen][0] + 0.02 * dx, 0), 1).toFixed(3); all[chosen][1] = +Math.min(Math.max(all[chosen][1] + 0.02 * dy, 0), 1).toFixed(3); }
    else { const set = chosen < x.length ? x : y, i = chosen % x.length; set[i] = Math.max(0, set[i] - 0.05 * dy * (set === x ? 1 : -1)); }
    to_address(); update(true);
  });
}
