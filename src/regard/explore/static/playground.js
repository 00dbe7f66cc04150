// Playground: scores on a grid as a sum of blobs, and every map and density of them, updated while they move.
import { $, latest, make, numbers, percent, post, read_state, say, sliders, write_state } from "./base.js";
import { backdrop, cells, density, highest, sample, scale_bar } from "./draw.js";

const SLIDERS = {
  alpha: { label: "alpha of entmax", min: 1, max: 4, step: 0.05, value: 1.5 },
  gamma: { label: "gamma of TVmax", min: 0, max: 1, step: 0.01, value: 0.1 },
  components: { label: "K components", min: 1, max: 5, step: 1, value: 2, whole: true, unit: "components" },
  functions: { label: "basis functions along a side", min: 2, max: 16, step: 1, value: 10, whole: true },
  eps: { label: "eps of Sinkhorn", min: 0.01, max: 10, step: 0.02, value: 0.1, log: true },
  cells: { label: "cells along a side", min: 4, max: 24, step: 1, value: 14, whole: true },
};
const FIRST = [{ x: 0.3, y: 0.35, size: 0.1, height: 3 }, { x: 0.72, y: 0.62, size: 0.08, height: 2.8 }];
const BOX = { left: 0.12, top: 0.16, right: 0.5, bottom: 0.56 };
const clamp = (v, low = 0, high = 1) => Math.min(Math.max(v, low), high), neat = v => +v.toFixed(3);
let blobs, box, chosen = 0, values, result = null;

export async function start_playground() {
  $("one-scale").addEventListener("change", () => { write_state({ scale: $("one-scale").checked ? "" : "own" }, "step"); paint(); });
  $("add-blob").addEventListener("click", () => {
    if (blobs.length >= 8) { say("There can be at most eight blobs."); return; }
    blobs.push({ x: neat(0.2 + 0.6 * Math.random()), y: neat(0.2 + 0.6 * Math.random()), size: 0.08, height: 3 });
    chosen = blobs.length - 1; changed(true);
  });
  $("reset-play").addEventListener("click", () => { blobs = structuredClone(FIRST); box = { ...BOX }; chosen = 0; changed(true); });
  draw_a_box();
  await restore_playground();
}

// The view that the address holds.
export async function restore_playground() {
  from_address();
  values = sliders($("play-sliders"), SLIDERS, () => update(), "p.");
  $("one-scale").checked = read_state().scale !== "own";
  chosen = 0;
  build_handles();
  await update();
}

function from_address() {
  const state = read_state();
  blobs = structuredClone(FIRST); box = { ...BOX };
  const numbers_in = text => text.split("_").map(Number);
  if (state.blobs) {
    const parsed = state.blobs.split("~").map(numbers_in).filter(b => b.length === 4 && b.every(Number.isFinite)).slice(0, 8)
      .map(([x, y, size, height]) => ({ x: clamp(x), y: clamp(y), size: clamp(size, 0.02, 0.5), height: clamp(height, 0, 20) }));
    if (parsed.length) blobs = parsed;
  }
  if (state.box) {
    const b = numbers_in(state.box);
    if (b.length === 4 && b.every(Number.isFinite)) [box.left, box.top, box.right, box.bottom] = b.map(v => clamp(v));
  }
}

function changed(rebuild = false) {
  write_state({
    blobs: blobs.map(b => [b.x, b.y, b.size, b.height].join("_")).join("~"),
    box: [box.left, box.top, box.right, box.bottom].map(neat).join("_"),
  }, rebuild ? "step" : "drag");
  if (rebuild) build_handles(); else place_handles();
  update();
}

function build_handles() {
  $("handles").replaceChildren(...blobs.map((_, i) => {
    const handle = make("button", { type: "button", class: "handle", "data-blob": i }, String(i + 1));
    handle.addEventListener("focus", () => { if (chosen !== i) { chosen = i; place_handles(); update(); } });
    handle.addEventListener("keydown", event => key_on_blob(event, i));
    drag(handle, (x, y) => { Object.assign(blobs[i], { x: neat(x), y: neat(y) }); chosen = i; changed(); });
    return handle;
  }), box_handle());
  place_handles();
}

function box_handle() {
  const handle = make("button", { type: "button", class: "handle box", id: "box-handle" }, "▢");
  const move = (dx, dy) => {
    const wide = box.right - box.left, high = box.bottom - box.top, left = clamp(box.left + dx, 0, 1 - wide), top = clamp(box.top + dy, 0, 1 - high);
    Object.assign(box, { left, top, right: left + wide, bottom: top + high }); changed();
  };
  handle.addEventListener("keydown", event => {
    const [dx, dy] = { ArrowLeft: [-0.02, 0], ArrowRight: [0.02, 0], ArrowUp: [0, -0.02], ArrowDown: [0, 0.02] }[event.key] || [];
    if (dx === undefined) return;
    event.preventDefault();
    if (event.shiftKey) { box.right = clamp(box.right + dx, box.left + 0.02); box.bottom = clamp(box.bottom + dy, box.top + 0.02); changed(); }
    else move(dx, dy);
  });
  drag(handle, (x, y) => move(x - box.left, y - box.top));
  return handle;
}

function place_handles() {
  const handles = $("handles").children;
  blobs.forEach((b, i) => {
    const handle = handles[i];
    handle.style.left = `${100 * b.x}%`; handle.style.top = `${100 * b.y}%`;
    handle.setAttribute("aria-current", String(i === chosen));
    handle.setAttribute("aria-label", `Blob ${i + 1} at ${b.x.toFixed(2)}, ${b.y.toFixed(2)}, height ${b.height.toFixed(1)}, width ${b.size.toFixed(2)}`);
  });
  const handle = $("box-handle");
  handle.style.left = `${100 * box.left}%`; handle.style.top = `${100 * box.top}%`;
  handle.setAttribute("aria-label", `Box from ${box.left.toFixed(2)}, ${box.top.toFixed(2)} to ${box.right.toFixed(2)}, ${box.bottom.toFixed(2)}; arrow keys move it, with shift they resize it`);
}

function key_on_blob(event, i) {
  const b = blobs[i], step = event.shiftKey ? 0.05 : 0.02;
  const act = {
    ArrowLeft: () => { b.x = neat(clamp(b.x - step)); }, ArrowRight: () => { b.x = neat(clamp(b.x + step)); },
    ArrowUp: () => { b.y = neat(clamp(b.y - step)); }, ArrowDown: () => { b.y = neat(clamp(b.y + step)); },
    "+": () => { b.height = neat(clamp(b.height + 0.2, 0, 20)); }, "-": () => { b.height = neat(clamp(b.height - 0.2, 0, 20)); },
    "]": () => { b.size = neat(clamp(b.size + 0.01, 0.02, 0.5)); }, "[": () => { b.size = neat(clamp(b.size - 0.01, 0.02, 0.5)); },
  }[event.key === "=" ? "+" : event.key];
  if (act) { event.preventDefault(); act(); changed(); }
  if (["Delete", "Backspace"].includes(event.key) && blobs.length > 1) {
    event.preventDefault(); blobs.splice(i, 1); chosen = 0; changed(true); $("handles").children[0].focus();
  }
}

function place_of(event) {
  const area = $("field-canvas").getBoundingClientRect();
  return [clamp((event.clientX - area.left) / area.width), clamp((event.clientY - area.top) / area.height)];
}

function drag(handle, moved) {
  handle.addEventListener("pointerdown", event => { handle.setPointerCapture(event.pointerId); handle.focus(); event.preventDefault(); });
  handle.addEventListener("pointermove", event => { if (handle.hasPointerCapture(event.pointerId)) moved(...place_of(event)); });
}

function draw_a_box() {
  const canvas = $("field-canvas");
  let start = null;
  canvas.addEventListener("pointerdown", event => { start = place_of(event); canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", () => { start = null; });
  canvas.addEventListener("pointermove", event => {
    if (!start) return;
    const [x, y] = place_of(event);
    Object.assign(box, { left: Math.min(x, start[0]), right: Math.max(x, start[0]), top: Math.min(y, start[1]), bottom: Math.max(y, start[1]) });
    changed();
  });
}

const update = latest(async () => {
  result = (await post("api/playground", { blobs, box, chosen: Math.min(chosen, blobs.length - 1), ...values })).data;
  paint();
});

function paint() {
  if (!result) return;
  const field = $("field-canvas");
  backdrop(field);
  cells(field, result.scores, highest(result.scores));
  outline(field);
  const sampled = Object.fromEntries(Object.entries(result.panels).map(([key, p]) => [key, p.density ? sample(p.density) : p.weights.map(r => r.map(w => w * p.weights.length ** 2))]));
  const common = Math.max(...Object.values(sampled).map(highest));
  if ($("one-scale").checked) scale_bar($("play-scale"), common); else $("play-scale").hidden = true;
  for (const [key, panel] of Object.entries(result.panels)) {
    const figure = $("panel-" + key) || new_panel(key), canvas = figure.querySelector("canvas"), top = $("one-scale").checked ? common : highest(sampled[key]);
    backdrop(canvas);
    if (panel.density) density(canvas, panel.density, sampled[key], top); else cells(canvas, sampled[key], top);
    outline(canvas);
    figure.querySelector("h3").textContent = panel.label; canvas.setAttribute("aria-label", `${panel.label}: half of the attention lies on ${percent(panel.half, 1)}`);
    numbers(figure.querySelector("dl"), [["half lies on", percent(panel.half, 1)], ["support", percent(panel.support, 1)], ["in the box", percent(panel.mass, 1)]]);
  }
}

function new_panel(key) {
  const figure = make("figure", { id: "panel-" + key }, make("h3"),
    make("canvas", { width: 240, height: 240, role: "img" }), make("dl", { class: "numbers" }));
  $("panels").append(figure);
  return figure;
}

function outline(canvas) {
  const g = canvas.getContext("2d"), { width, height } = canvas;
  g.setLineDash([5, 4]); g.lineWidth = 1.5; g.strokeStyle = "#fff";
  g.strokeRect(box.left * width, box.top * height, (box.right - box.left) * width, (box.bottom - box.top) * height);
  g.setLineDash([]);
}
