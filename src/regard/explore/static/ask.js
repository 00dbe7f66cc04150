// Ask: a picture, a question, the answer and where the model looked, with one attention or several side by side.
import { $, check, choices, kept, make, post, read_state, say, sliders, write_state } from "./base.js";
import { show_answer, show_refusal, show_views } from "./show.js";
import { prepare } from "./upload.js";

const BESIDE = 3, QUESTIONS = 6;  // at most: attentions beside the first, questions that are offered
const OPACITY = { opacity: { label: "Opacity of the colour", min: 0, max: 100, step: 5, value: 75, whole: true, unit: "percent" } };
const view = { sample: null, upload: null, picture: null, attention: null, beside: [], replies: [], turn: 0 };
const uploads = [], cache = new Map();
let server, display;

const readable = kind => server.model.labels[kind] ?? kind;
const sample_of = name => server.samples.find(s => s.name === name);
const layer = () => document.querySelector("[name=layer]:checked").value;

export async function start_ask(told) {
  server = told;
  const { attentions, words } = server.model, { samples, limits } = server;
  $("upload-note").textContent = `Photographs above ${limits.bytes / 1e6} MB or ${limits.pixels / 1e6} megapixels are shrunk here, before they are sent.`;
  $("question").maxLength = limits.letters;
  $("samples").hidden = !samples.length;
  if (!samples.length) $("upload-title").textContent = "One of your own";
  choices($("samples"), "radio", "sample", samples.map(s => ({ value: s.name, label: s.label, content: make("img", { src: "api/thumbnails/" + s.name, alt: "" }) })),
    name => choose(sample_of(name)));
  choices($("attentions"), "radio", "attention", attentions.map(kind => ({ value: kind, label: readable(kind) })), kind => {
    view.attention = kind; view.beside = view.beside.filter(k => k !== kind);
    attend();
  });
  choices($("beside"), "checkbox", "beside", attentions.map(kind => ({ value: kind, label: readable(kind) })), (kind, on) => {
    view.beside = on ? [...view.beside, kind] : view.beside.filter(k => k !== kind);
    attend();
  });
  $("known-title").textContent = words.length ? "Some words that this model knows:" : "";
  $("known-words").replaceChildren(...words.map(word => make("button", { type: "button", dir: "auto", onclick: () => add_word(word) }, word)));
  $("upload").addEventListener("change", () => { const [file] = $("upload").files; if (file) upload(file); });
  $("ask-form").addEventListener("submit", event => { event.preventDefault(); ask("step"); });
  for (const radio of document.getElementsByName("layer")) radio.addEventListener("change", () => { write_state({ layer: radio.value === "attention" ? "" : radio.value }, "step"); show(); });
  $("ask-one-scale").addEventListener("change", () => { write_state({ scale: $("ask-one-scale").checked ? "" : "own" }, "step"); show(); });
  let waiting = 0;
  window.addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(() => { if (!$("ask").hidden) show(); }); });
  await restore_ask();
}

// The view that the address holds, and the entry of the history for an uploaded picture.
export async function restore_ask() {
  const state = read_state(), kinds = server.model.attentions, sample = sample_of(state.sample);
  view.attention = kinds.includes(state.attention) ? state.attention : kinds[0];
  view.beside = (state.beside || "").split("~").filter(k => kinds.includes(k) && k !== view.attention).slice(0, BESIDE);
  for (const radio of document.getElementsByName("layer")) radio.checked = radio.value === (state.layer || "attention");
  if (!document.querySelector("[name=layer]:checked")) document.getElementsByName("layer")[0].checked = true;
  $("ask-one-scale").checked = state.scale !== "own";
  display = sliders($("ask-sliders"), OPACITY, show, "a.");
  mark_attentions();
  if (view.beside.length) $("beside-box").open = true;
  const earlier = sample ? null : uploads[history.state?.upload];
  if (earlier) { put_upload(history.state.upload); $("question").value = state.question || ""; await ask(); return; }
  const first = sample || server.samples[0];
  if (!first) { $("question").value = state.question || ""; offer(null); show(); return; }
  await put_sample(first, state.question);
  await ask();
}

async function choose(sample) {
  await put_sample(sample);
  await ask("step");
}

async function put_sample(sample, question) {
  const turn = view.turn += 1;
  Object.assign(view, { sample, upload: null });
  kept.upload = null;
  check($("samples"), [sample.name]);
  $("upload").value = "";
  $("question").value = question ?? sample.questions[0]?.text ?? "";
  offer(sample);
  let picture = null;
  try { picture = await load("api/samples/" + sample.name); } catch (error) { say(error.message); }
  if (turn === view.turn) { view.picture = picture; view.replies = []; }
}

function load(address) {
  return new Promise((resolve, reject) => {
    const picture = new Image();
    picture.onload = () => resolve(picture);
    picture.onerror = () => reject(new Error("The picture cannot be loaded. Is the server still running?"));
    picture.src = address;
  });
}

// Questions as buttons: those about the sample, else some of all samples, then with words that the model knows.
function offer(sample) {
  const texts = (sample ? [sample] : server.samples).flatMap(s => s.questions.map(q => q.text));
  $("suggestions").replaceChildren(...[...new Set(texts)].slice(0, QUESTIONS).map(text => make("button", { type: "button", dir: "auto", onclick: () => { $("question").value = text; ask("step"); } }, text)));
  $("known").hidden = Boolean(sample) || !$("known-words").children.length;
}

function add_word(word) {
  const question = $("question");
  question.value = `${question.value.trim()} ${word}`.trim();
  question.focus();
}

async function upload(file) {
  const note = $("upload-note");
  note.textContent = "Reading the picture …";
  let ready;
  try { ready = await prepare(file, server.limits); }
  catch (error) { note.textContent = ""; $("upload").value = ""; say(error.message); return; }  // the view stays as it was
  uploads.push(ready);
  put_upload(uploads.length - 1);
  await ask("step");
}

function put_upload(number) {
  view.turn += 1;
  Object.assign(view, { sample: null, upload: number, picture: uploads[number].picture, replies: [] });
  kept.upload = number;
  check($("samples"), []);
  $("upload-note").textContent = uploads[number].note;
  offer(null);
}

function mark_attentions() {
  check($("attentions"), [view.attention]);
  check($("beside"), view.beside);
  for (const box of $("beside").querySelectorAll("input")) box.disabled = box.value === view.attention || (!box.checked && view.beside.length >= BESIDE);
}

function attend() {
  mark_attentions();
  return ask("step");
}

// Ask the question of the form, with every attention that is shown. What comes after a newer question is dropped.
async function ask(how) {
  const question = $("question").value.trim(), turn = view.turn += 1, kinds = [view.attention, ...view.beside], { sample, upload: number } = view;
  write_state({ tab: "ask", sample: sample?.name ?? "", question, attention: view.attention === server.model.attentions[0] ? "" : view.attention, beside: view.beside.join("~") }, how);
  if (!sample && number === null) { say("Choose a picture first."); return; }
  if (!question) { view.replies = []; $("answer").hidden = $("info").hidden = true; show(); $("question").focus({ preventScroll: true }); return; }
  $("answer").classList.add("old");
  try {
    const replies = await Promise.all(kinds.map(kind => answer_of(sample, number, question, kind)));
    if (turn !== view.turn) return;
    view.replies = replies;
    say("");
    show_answer(replies[0], truth_of(sample, question), readable);
  } catch (error) {
    if (turn !== view.turn) return;
    view.replies = [];
    if (error.reply?.unknown) { show_refusal(error.message, error.reply.unknown); $("known").hidden = !$("known-words").children.length; }
    else { $("answer").hidden = $("info").hidden = true; say(error.message); }
  }
  $("answer").classList.remove("old");
  show();
}

async function answer_of(sample, number, question, kind) {
  const key = JSON.stringify([sample?.name, number, question, kind]);
  if (cache.has(key)) return cache.get(key);
  const form = new FormData();
  form.append("question", question);
  form.append("attention", kind);
  if (sample) form.append("sample", sample.name); else form.append("picture", uploads[number].file, "picture");
  const reply = await post("api/ask", form);
  if (cache.size > 80) cache.clear();
  cache.set(key, reply);
  return reply;
}

function truth_of(sample, question) {
  const same = text => text.trim().normalize("NFC").toLowerCase();
  return sample?.questions.find(q => same(q.text) === same(question))?.answers ?? [];
}

function show() {
  const nothing = !view.sample && view.upload === null;
  $("empty").hidden = !nothing;
  $("views").hidden = $("display").hidden = nothing;
  if (!nothing) show_views(view.picture, view.replies, { layer: layer(), opacity: display.opacity / 100, one_scale: $("ask-one-scale").checked, readable });
}
