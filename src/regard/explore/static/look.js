// Look: a place of a picture, what it looks at under every map, in every layer and head, and how much lies in a region.
import { $, check, choices, latest, make, numbers, percent, post, read_state, say, sliders, write_state } from "./base.js";
import { backdrop, cells, highest, scale_bar } from "./draw.js";
import { show_answers, show_multiples } from "./look_model.js";
import { show_table, start_table } from "./look_table.js";
import { prepare } from "./upload.js";

const SLIDERS = {
  alpha: { label: "alpha of entmax", min: 1, max: 4, step: 0.05, value: 1.5 },
  gamma: { label: "gamma of TVmax", min: 0, max: 1, step: 0.01, value: 0.1 },
  scale: { label: "scale of the scores", min: 0.2, max: 50, step: 0.02, value: 1, log: true },
};
const CORNERS = 60, LEAST = 2, WIDTH = 480;  // corners of a region; the top of the scale in multiples of even attention; pixels
const CAT = [0.35, 0.375];  // an eye of the cat, where the page opens
const clamp = v => Math.min(Math.max(v, 0), 1), neat = v => +v.toFixed(3);
const opened = new Map(), cache = new Map(), refused = [];  // what could not be read, until it is said
const view = { picture: null, place: null, layer: -1, head: null, exchange: false, values: {} };
let server, turn = 0;

export async function start_look(told) {
  server = told;
  const { samples, model } = server.look;
  choices($("look-samples"), "radio", "look-sample", samples.map(s => ({ value: s.name, label: s.label, content: make("img", { src: "api/thumbnails/" + s.name, alt: "" }) })), name => open_sample(name, "step"));
  $("look-samples").hidden = samples.length < 2;
  $("look-exchange-row").hidden = !model;
  $("look-upload").addEventListener("change", () => add_files([...$("look-upload").files]));
  $("look-class").addEventListener("click", () => { view.place = null; changed("step"); });
  $("look-clear").addEventListener("click", () => { view.picture.outline = []; changed("step"); });
  $("look-exchange").addEventListener("change", () => { view.exchange = $("look-exchange").checked; changed("step"); });
  $("look-scale-one").addEventListener("change", () => { write_state({ scale: $("look-scale-one").checked ? "" : "own" }, "step"); paint(); });
  $("look-forget").addEventListener("click", () => { for (const name of [...opened.keys()]) if (name !== view.picture.name) opened.delete(name); paint(); });
  start_table();
  follow_pointer();
  follow_keys();
  await restore_look();
}

// The view that the address holds; an uploaded picture is there as long as the page is.
export async function restore_look() {
  const state = read_state(), pair = text => text.split("_").map(Number);
  const settings = server.look.model ? { alpha: SLIDERS.alpha, gamma: SLIDERS.gamma } : SLIDERS;
  view.values = sliders($("look-sliders"), settings, () => update(), "l.");
  const place = state.place === "class" ? null : state.place ? pair(state.place) : undefined;
  view.place = place === undefined ? (server.look.model ? null : CAT) : place && place.length === 2 && place.every(v => v >= 0 && v <= 1) ? place : null;
  view.layer = /^\d+$/.test(state.layer || "") ? +state.layer : -1;
  view.head = /^\d+$/.test(state.head || "") ? +state.head : null;
  view.exchange = state.exchange === "1" && Boolean(server.look.model);
  $("look-exchange").checked = view.exchange;
  $("look-scale-one").checked = state.scale !== "own";
  const known = server.look.samples.some(s => s.name === state.picture), corners = (state.region || "").split("~").map(pair);
  if (opened.has(state.picture)) view.picture = opened.get(state.picture); else await put_sample(known ? state.picture : server.look.samples[0].name);
  view.picture.outline = corners.length > 2 && corners.every(c => c.length === 2 && c.every(v => v >= 0 && v <= 1)) ? corners.slice(0, CORNERS) : [];
  check($("look-samples"), [view.picture.name]);
  await update();
}

async function put_sample(name) {
  if (!opened.has(name)) {
    const image = new Image(), { label } = server.look.samples.find(s => s.name === name);
    image.src = "api/samples/" + name;
    try { await image.decode(); } catch { say("The picture cannot be loaded. Is the server still running?"); }
    opened.set(name, { name, label, image: image.naturalWidth ? image : null, outline: [], reply: null });
  }
  view.picture = opened.get(name);
}

async function open_sample(name, how) {
  $("look-upload").value = "";
  await put_sample(name);
  changed(how);
}

function open_picture(name) {
  view.picture = opened.get(name);
  check($("look-samples"), [name]);
  changed("step");
}

// Pictures of one's own, one or many: each that cannot be read is named, and the others are looked at.
async function add_files(files) {
  for (const file of files) {
    let name = file.name.slice(0, 60) || "picture";
    while (opened.has(name) || server.look.samples.some(s => s.name === name)) name += " ′";
    try {
      const ready = await prepare(file, server.limits);
      opened.set(name, { name, label: name, image: ready.picture, file: ready.file, outline: [], reply: null });
      view.picture = opened.get(name);
    } catch (error) { refused.push(error.message); }
  }
  check($("look-samples"), [view.picture.name]);
  await changed("step");
}

function changed(how) {
  const { picture, place, layer, head, exchange } = view;
  write_state({
    tab: "look", picture: picture.name, place: place ? place.map(neat).join("_") : "class", layer: layer < 0 ? "" : layer, head: head ?? "",
    exchange: exchange ? 1 : "", region: picture.outline.map(c => c.map(neat).join("_")).join("~"),
  }, how);
  return update();
}

// The picture that is shown first, and then the others of the table, unless something has changed meanwhile.
const send = latest(async mine => {
  for (const picture of [view.picture, ...[...opened.values()].filter(p => p !== view.picture)]) {
    if (mine !== turn) return;
    try { picture.reply = await reply_of(picture); }
    catch (error) { picture.reply = null; if (picture !== view.picture) opened.delete(picture.name); refused.push(`${picture.label}: ${error.message}`); }
    if (mine === turn) paint();
  }
  if (refused.length) throw new Error(refused.splice(0).join(" "));
});
function update() { turn += 1; paint_picture(); return send(turn); }

async function reply_of(picture) {
  const { place, layer, head, exchange, values } = view, asked = { place, layer, head, exchange, outline: picture.outline, ...values };
  const key = JSON.stringify([picture.name, asked]);
  if (cache.has(key)) return cache.get(key);
  const form = new FormData();
  form.append("view", JSON.stringify(asked));
  if (picture.file) form.append("picture", picture.file, "picture"); else form.append("sample", picture.name);
  const { data } = await post("api/look", form);
  if (cache.size > 200) cache.clear();
  cache.set(key, data);
  return data;
}

const shape_of = ({ image }) => image ? Math.min(2.5, Math.max(0.4, (image.naturalHeight ?? image.height) / (image.naturalWidth ?? image.width))) : 1;

function paint_picture() {
  const canvas = $("look-canvas"), { picture } = view;
  canvas.width = WIDTH; canvas.height = Math.round(WIDTH * shape_of(picture));
  const g = backdrop(canvas, null);
  if (picture.image) { g.imageSmoothingEnabled = true; g.drawImage(picture.image, 0, 0, canvas.width, canvas.height); }
  mark(canvas, 2);
  $("look-clear").disabled = !picture.outline.length;
}

function grid_of() { return view.picture.reply?.grid ?? [20, 30]; }
const cell_of = ([x, y], [rows, columns]) => [Math.min(Math.floor(y * rows), rows - 1), Math.min(Math.floor(x * columns), columns - 1)];

// The cell that looks, and the region.
function mark(canvas, line) {
  const g = canvas.getContext("2d"), { width, height } = canvas, { place, picture } = view, grid = grid_of(), [rows, columns] = grid;
  if (picture.outline.length > 1) {
    g.beginPath();
    picture.outline.forEach(([x, y], i) => g[i ? "lineTo" : "moveTo"](x * width, y * height));
    g.closePath();
    g.lineWidth = line + 2; g.strokeStyle = "#000a"; g.stroke(); g.lineWidth = line; g.setLineDash([6, 4]); g.strokeStyle = "#fff"; g.stroke(); g.setLineDash([]);
  }
  const at = place ?? (picture.reply && !picture.reply.class_token ? [0.5, 0.5] : null);
  if (!at) return;
  const [row, column] = cell_of(at, grid), box = [column * width / columns, row * height / rows, width / columns, height / rows];
  g.lineWidth = line + 2; g.strokeStyle = "#000c"; g.strokeRect(...box); g.lineWidth = line; g.strokeStyle = "#ff5fa2"; g.strokeRect(...box);
}

function paint() {
  if ($("look").hidden) return;
  paint_picture();
  const { picture } = view, { reply } = picture, canvas = $("look-canvas");
  $("look-result").hidden = !reply;
  if (!reply) { canvas.setAttribute("aria-label", picture.label); return; }
  const [rows, columns] = reply.grid, where = reply.cell ? `row ${reply.cell[0] + 1}, column ${reply.cell[1] + 1} of ${rows} × ${columns} patches` : "the class token";
  canvas.setAttribute("aria-label", `${picture.label}: what ${where} looks at. Arrow keys move the cell, with shift they draw a region, Escape removes it.`);
  $("look-class").hidden = !reply.class_token;
  $("look-class").disabled = !reply.cell;
  const head = reply.head === null ? `the mean of ${reply.heads} heads` : `head ${reply.head}`;
  $("look-title").textContent = server.look.model ? `What ${where} looks at: layer ${reply.layer}, ${head}` : `What ${where} looks at, by colour`;
  $("look-elsewhere").textContent = reply.elsewhere > 0.0005 ? `Maps are of the scores of patches alone; the model has ${percent(reply.elsewhere, 1)} of this query's weight on other tokens.` : "";
  const values = reply.maps.map(m => m.weights.map(row => row.map(w => w * rows * columns))), tops = values.map(v => Math.max(LEAST, highest(v))), common = Math.max(...tops), one = $("look-scale-one").checked;
  if (one) scale_bar($("look-scale"), common); else { $("look-scale").replaceChildren("Each on its own scale"); $("look-scale").hidden = false; }
  const place = $("look-maps");
  while (place.children.length > reply.maps.length) place.lastChild.remove();
  while (place.children.length < reply.maps.length) place.append(make("figure", {}, make("h3"), make("canvas", { role: "img" }), make("dl", { class: "numbers" })));
  reply.maps.forEach((map, i) => {
    const [title, drawn, list] = place.children[i].children;
    title.textContent = map.label;
    drawn.width = 300; drawn.height = Math.round(300 * shape_of(picture));
    backdrop(drawn, picture.image);
    cells(drawn, values[i], one ? common : tops[i], 0.85);
    mark(drawn, 1.5);
    drawn.setAttribute("aria-label", `${map.label}: half of the attention lies on ${percent(map.half, 1)} of the patches`);
    const region = map.mass === null ? [] : [["in the region", percent(map.mass, 1)], ["chance", percent(map.chance, 1)], ["elsewhere", `${Math.round(100 * map.low)} to ${percent(map.high)}`]];
    numbers(list, [["effective", `${+map.effective.toPrecision(3)} of ${rows * columns}`], ["half lies on", percent(map.half, 1)], ...region]);
  });
  show_answers(reply);
  show_multiples(reply, picture.image, shape_of(picture), (layer, chosen) => { view.layer = layer; view.head = chosen; changed("step"); });
  show_table([...opened.values()], view, open_picture);
}

function place_of(event) {
  const area = $("look-canvas").getBoundingClientRect();
  return [clamp((event.clientX - area.left) / area.width), clamp((event.clientY - area.top) / area.height)];
}

// A click is a cell. Dragging draws a region by hand: with a mouse always, with a finger once it is switched on.
function follow_pointer() {
  const canvas = $("look-canvas");
  let start = null, drawn = [];
  const draws = event => event.pointerType === "mouse" || $("look-draw").checked;
  $("look-draw").addEventListener("change", () => { canvas.style.touchAction = $("look-draw").checked ? "none" : ""; });
  canvas.addEventListener("pointerdown", event => { start = place_of(event); drawn = [start]; if (draws(event)) canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", event => {
    if (!start || !draws(event) || !canvas.hasPointerCapture(event.pointerId)) return;
    const [x, y] = place_of(event), [lastx, lasty] = drawn.at(-1);
    if (Math.hypot(x - lastx, y - lasty) < 0.012) return;
    drawn.push([x, y]);
    if (drawn.length > 2) { view.picture.outline = thinned(drawn); paint_picture(); }
  });
  canvas.addEventListener("pointerup", event => {
    if (!start) return;
    const small = drawn.length < 3;
    if (small) { view.place = place_of(event).map(neat); }
    start = null; drawn = [];
    changed("step");
  });
  canvas.addEventListener("pointercancel", () => { start = null; drawn = []; });
}

function thinned(corners) {
  const step = Math.max(1, corners.length / CORNERS);
  return Array.from({ length: Math.min(CORNERS, corners.length) }, (_, i) => corners[Math.floor(i * step)].map(neat));
}

// Arrow keys move the cell by one; with shift they draw a box from the cell where shift was first held.
function follow_keys() {
  let anchor = null;
  $("look-canvas").addEventListener("keydown", event => {
    const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] || [];
    if (event.key === "Escape" && view.picture.outline.length) { view.picture.outline = []; anchor = null; changed("step"); return; }
    if (dx === undefined) return;
    event.preventDefault();
    const [rows, columns] = grid_of(), [row, column] = cell_of(view.place ?? [0.5, 0.5], [rows, columns]);
    const to = [Math.min(Math.max(row + dy, 0), rows - 1), Math.min(Math.max(column + dx, 0), columns - 1)];
    if (event.shiftKey) {
      anchor ??= [row, column];
      const [top, bottom] = [Math.min(anchor[0], to[0]) / rows, (Math.max(anchor[0], to[0]) + 1) / rows], [left, right] = [Math.min(anchor[1], to[1]) / columns, (Math.max(anchor[1], to[1]) + 1) / columns];
      view.picture.outline = [[left, top], [right, top], [right, bottom], [left, bottom]].map(c => c.map(neat));
    } else anchor = null;
    view.place = [(to[1] + 0.5) / columns, (to[0] + 0.5) / rows];
    changed("drag");
  });
}
