// Ask: a picture, a question, the answer and where the model looked.
import { $, make, numbers, percent, post, read_state, say, write_state } from "./base.js";
import { backdrop, cells, density, highest, plain, sample, scale_bar } from "./draw.js";

const view = { sample: null, file: null, picture: null, attention: null, answer: null, cache: new Map() };

let labels = {};  // readable names of the attentions, from the server
const readable = kind => labels[kind] ?? kind;

export async function start_ask(open) {
  const state = read_state(), server = await (await fetch("api/state")).json();
  if (!server.model) {
    $("no-model").hidden = false;
    $("no-model").replaceChildren(server.hint + " ", make("button", { type: "button", class: "quiet", onclick: () => open("playground", true) }, "Open the playground"));
    $("send").disabled = true;
  }
  $("upload-limits").textContent = `PNG, JPEG, WebP, GIF, BMP or TIFF, up to ${server.limits.bytes / 1e6} MB and ${server.limits.pixels / 1e6} megapixels.`;
  $("question").maxLength = server.limits.letters;
  $("samples").append(...server.samples.map(s => make("button", {
    type: "button", role: "radio", "aria-checked": "false", "aria-label": s.name, "data-sample": s.name, onclick: () => { choose(s); ask(); },
  }, make("img", { src: "api/samples/" + s.name, alt: "", loading: "lazy" }))));
  const kinds = server.model ? server.model.attentions : [];
  if (server.model) labels = server.model.labels;
  view.attention = kinds.includes(state.attention) ? state.attention : kinds[0];
  $("attentions").append(...kinds.map(kind => make("button", {
    type: "button", role: "radio", "aria-checked": String(kind === view.attention), "data-attention": kind, onclick: () => attend(kind),
  }, readable(kind))));
  for (const group of ["samples", "attentions"]) arrows($(group));
  $("upload").addEventListener("change", () => { const [file] = $("upload").files; if (file) upload(file); });
  $("ask-form").addEventListener("submit", event => { event.preventDefault(); ask(); });
  for (const radio of document.getElementsByName("layer")) radio.addEventListener("change", () => { write_state({ layer: radio.value }); show(); });
  const layer = [...document.getElementsByName("layer")].find(r => r.value === state.layer);
  if (layer) layer.checked = true;
  const first = server.samples.find(s => s.name === state.sample) || server.samples[0];
  if (first) await choose(first, state.question);
  if (server.model && first) await ask();
}

// Arrow keys move between the choices of a group, as in a group of radio buttons.
function arrows(group) {
  group.addEventListener("keydown", event => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key], all = [...group.children];
    const at = all.indexOf(document.activeElement);
    if (step && at >= 0) { event.preventDefault(); const next = all[(at + step + all.length) % all.length]; next.focus(); next.click(); }
  });
}

function load(address) {
  return new Promise((resolve, reject) => {
    const picture = new Image();
    picture.onload = () => resolve(picture);
    picture.onerror = () => reject(new Error("The browser cannot show this picture; the server may still read it."));
    picture.src = address;
  });
}

async function choose(s, question) {
  Object.assign(view, { sample: s.name, file: null, answer: null });
  mark("samples", "sample", s.name);
  $("upload").value = "";
  $("question").value = question ?? s.questions[0] ?? "";
  $("suggestions").replaceChildren(...s.questions.slice(0, 5).map(q => make("button", {
    type: "button", onclick: () => { $("question").value = q; ask(); } }, q)));
  $("questions").replaceChildren(...s.questions.map(q => make("option", { value: q })));
  write_state({ sample: s.name, question: $("question").value });
  view.picture = await load("api/samples/" + s.name);
  show();
}

async function upload(file) {
  Object.assign(view, { sample: null, file, answer: null, picture: null });
  view.cache.clear();
  mark("samples", "sample", null);
  write_state({ sample: "" });
  const address = URL.createObjectURL(file);
  try { view.picture = await load(address); } catch { /* the server reports what is wrong with it, if anything */ }
  show();
  await ask();
}

function mark(group, key, value) {
  for (const button of $(group).children) button.setAttribute("aria-checked", String(button.dataset[key] === value));
}

async function attend(kind) {
  view.attention = kind;
  mark("attentions", "attention", kind);
  write_state({ attention: kind });
  await ask();
}

async function ask() {
  const question = $("question").value.trim();
  if (!view.attention || (!view.sample && !view.file)) return;
  if (!question) { say("Type a question."); return; }
  write_state({ question });
  const key = JSON.stringify([view.sample, question, view.attention]), attention = view.attention;
  const form = new FormData();
  form.append("question", question);
  form.append("attention", view.attention);
  if (view.file) form.append("picture", view.file); else form.append("sample", view.sample);
  $("send").disabled = true;
  try {
    const reply = view.cache.get(key) || await post("api/ask", form);
    if (view.cache.size > 50) view.cache.clear();
    view.cache.set(key, reply);
    say("");
    if (attention === view.attention) { view.answer = reply; show_answer(); show(); }
  } catch (error) { say(error.message); view.answer = null; $("answer").hidden = true; show(); }
  $("send").disabled = false;
}

function show_answer() {
  const { data, text } = view.answer;
  $("answer").hidden = false;
  $("answer-text").textContent = data.answer;
  $("answer-confidence").textContent = percent(data.confidence, 1) + " sure";
  $("top").replaceChildren(...data.top.map(({ answer, score }) => make("li", {}, make("span", {}, answer),
    make("meter", { min: 0, max: 1, value: score, "aria-label": answer }), make("span", {}, percent(score, 1)))));
  const k = data.density ? data.density.components.length : null;
  numbers($("ask-numbers"), [
    ["attention", readable(data.attention)],
    ...(k > 1 ? [["components", String(k)]] : []),
    ["entropy", data.entropy.toFixed(2) + " bits"],
    ["support area", percent(data.support_area, 1)],
    ["model time", (1000 * data.seconds).toFixed(0) + " ms"],
  ]);
  const top = Math.max(1e-9, ...(data.words || []).map(w => w.weight));
  $("words").replaceChildren(...(data.words || []).map(({ word, weight }) => {
    const shown = make("span", { title: percent(weight, 1) }, word);
    shown.style.setProperty("--share", (70 * weight / top).toFixed(0) + "%");
    return shown;
  }));
  $("ask-json").textContent = text;
}

function show() {
  const canvas = $("ask-canvas"), layer = document.querySelector("[name=layer]:checked").value, { picture, answer } = view;
  if (picture) canvas.height = Math.round(canvas.width * Math.min(2, picture.naturalHeight / picture.naturalWidth));
  $("ask-scale").hidden = true;
  if (!answer) { if (picture) plain(canvas, picture); else backdrop(canvas); canvas.setAttribute("aria-label", "The picture; no question asked yet"); return; }
  const { data } = answer, count = rows => rows.length * rows[0].length;
  if (layer === "picture" && picture) { plain(canvas, picture); canvas.setAttribute("aria-label", "The picture"); return; }
  backdrop(canvas, picture);
  let top;
  if (layer === "attention" && data.density) {
    const values = sample(data.density);
    top = highest(values);
    density(canvas, data.density, values, top);
  } else {
    const rows = layer === "effective" ? data.effective_weights : data.weights;
    top = highest(rows) * count(rows);
    cells(canvas, rows, highest(rows));
  }
  scale_bar($("ask-scale"), top);
  canvas.setAttribute("aria-label", `${layer === "effective" ? "Effective weights" : "Where the model looked"}: ${readable(data.attention)}, entropy ${data.entropy.toFixed(2)} bits, ${percent(data.support_area)} of the picture`);
}
