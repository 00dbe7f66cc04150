// What a model answered, and where it looked: one picture for each attention, on one scale, and the numbers beside them.
import { $, make, numbers, percent } from "./base.js";
import { backdrop, cells, density, highest, plain, sample, scale_bar } from "./draw.js";

const LEAST = 2;  // the top of the scale at least, in multiples of even attention: even attention is not drawn as the most
const LONGEST = 2.5;  // pictures longer than this are drawn squeezed, as the model sees them

// Pixels of a canvas for the room that it has on this screen.
function pixels_wide(views, canvas, columns, ratio) {
  const room = (views.clientWidth - 12 * (columns - 1)) / columns, high = parseFloat(getComputedStyle(canvas).maxHeight) || Infinity;
  return Math.round(Math.min(Math.max(160, Math.min(room, high / ratio) * Math.min(devicePixelRatio, 2)), 1200));
}

// What is drawn for a reply: a density on a fine grid or weights on cells, both per area, so that 1 is even attention.
function layer_of({ data }, layer) {
  if (layer === "attention" && data.density) return { density: data.density, values: sample(data.density) };
  const rows = layer === "effective" ? data.effective_weights : data.weights, count = rows.length * rows[0].length;
  return { values: rows.map(row => row.map(w => w * count)) };
}

function highest_place({ values, density: smooth }) {
  let [best, x, y] = [-Infinity, 0, 0];
  values.forEach((row, j) => row.forEach((value, i) => { if (value > best) [best, x, y] = [value, i, j]; }));
  const across = smooth ? x / (values[0].length - 1) : (x + 0.5) / values[0].length, down = smooth ? y / (values.length - 1) : (y + 0.5) / values.length;
  return `most at ${percent(across)} across, ${percent(down)} down`;
}

// Draw the picture once for each reply. `options`: {layer, opacity between 0 and 1, one_scale, readable(kind)}.
export function show_views(picture, replies, options) {
  const several = replies.length > 1, shape = picture ? (picture.naturalHeight ?? picture.height) / (picture.naturalWidth ?? picture.width) : 1;
  const ratio = Math.min(LONGEST, Math.max(1 / LONGEST, shape));
  const drawn = replies.length ? replies : [null], views = $("views");
  views.dataset.count = drawn.length;
  while (views.children.length > drawn.length) views.lastChild.remove();
  while (views.children.length < drawn.length) views.append(make("figure", {}, make("canvas", { role: "img" }), make("figcaption")));
  const layers = replies.map(reply => layer_of(reply, options.layer)), tops = layers.map(l => Math.max(LEAST, highest(l.values))), common = Math.max(...tops);
  drawn.forEach((reply, i) => {
    const [canvas, caption] = views.children[i].children;
    canvas.width = pixels_wide(views, canvas, several ? 2 : 1, ratio); canvas.height = Math.round(canvas.width * ratio);
    delete canvas.dataset.labels;
    caption.hidden = !several;
    if (!reply || (options.layer === "picture" && picture)) {
      if (picture) plain(canvas, picture); else backdrop(canvas);
      canvas.setAttribute("aria-label", reply ? "The picture alone" : "The picture; no question asked yet");
    } else {
      backdrop(canvas, picture);
      const top = options.one_scale ? common : tops[i], layer = layers[i];
      if (layer.density) density(canvas, layer.density, layer.values, top, options.opacity); else cells(canvas, layer.values, top, options.opacity);
      canvas.setAttribute("aria-label", `${options.layer === "effective" ? "Effective weights" : "Where the model looked"}: ${options.readable(reply.data.attention)}; ${half_of(reply.data)}, ${highest_place(layer)}`);
    }
    if (several) caption.replaceChildren(make("b", {}, options.readable(reply.data.attention)), " ", make("bdi", {}, reply.data.answer), ` (score ${score(reply.data.score)})`, make("span", { class: "more" }, `; half lies on ${percent(reply.data.half_area, 1)}`));
  });
  $("ask-one-scale").parentElement.hidden = !several;
  if (!replies.length || options.layer === "picture") $("ask-scale").hidden = true;
  else if (options.one_scale || !several) scale_bar($("ask-scale"), common);
  else { $("ask-scale").replaceChildren(`Each on its own scale, up to ${tops.map(t => +t.toPrecision(3)).join(", ")} × even attention`); $("ask-scale").hidden = false; }
}

const score = x => x.toFixed(2);
const half_of = data => `half of the attention lies on ${percent(data.half_area, 1)} of the picture`;
const sentence = text => text[0].toUpperCase() + text.slice(1) + ".";
const quoted = words => words.map(word => `“\u2068${word}\u2069”`).join(", ");  // isolated: words may run from right to left

// The answer with what people said, if they were asked: `truth` are their answers.
export function show_answer({ data, text }, truth, readable) {
  $("answer").hidden = $("info").hidden = false;
  $("answer-text").textContent = data.answer;
  $("answer-score").textContent = `score ${score(data.score)}`;
  show_truth(data.answer, truth);
  show_words(data.words || [], data.unread || []);
  $("top").replaceChildren(...data.top.map(({ answer, score: s }) => make("li", {}, make("span", { dir: "auto" }, answer),
    make("meter", { min: 0, max: 1, value: s, "aria-label": `score of ${answer}` }), make("span", {}, score(s)))));
  $("half").textContent = sentence(half_of(data));
  const parts = data.density ? data.density.components : [];
  numbers($("ask-numbers"), [
    ["attention", readable(data.attention)],
    ...(parts.length > 1 ? [["shares of components", parts.map(c => percent(c.share)).join(", ")]] : []),
    ["with any attention", percent(data.support_area, 1)],
    ["model time", (1000 * data.seconds).toFixed(0) + " ms"],
  ]);
  $("ask-json").textContent = text;
}

function show_truth(answer, truth) {
  $("truth").hidden = !truth.length;
  $("verdict").textContent = "";
  if (!truth.length) return;
  const said = truth.flatMap((a, i) => [i ? ", " : "", make("bdi", {}, a.answer), truth.length > 1 ? ` (${a.count} of ${a.total})` : ""]);
  const impossible = truth.some(a => a.possible) ? "" : "; not among the answers that this model can give";
  $("truth").replaceChildren("asked of people: ", ...said, impossible);
  const credit = truth.find(a => a.answer === answer)?.credit ?? 0, verdict = credit >= 0.9 ? "right" : credit > 0 ? "partly right" : "wrong";
  $("verdict").textContent = { right: "✓ right", "partly right": "≈ partly right", wrong: "✗ wrong" }[verdict];
  $("verdict").dataset.verdict = verdict;
}

// The words of the question as the model reads them: tinted by their weights, unknown ones struck out.
function show_words(words, unread) {
  const top = Math.max(1e-9, ...words.map(w => w.weight));
  $("words").replaceChildren(...words.flatMap(({ word, weight, role }) => {
    const shown = role === "unknown" ? make("s", { title: "not known to the model" }, word, make("span", { class: "unseen" }, " (unknown)"))
      : make("span", { class: "word", title: `attention weight ${percent(weight, 1)}` }, word);
    shown.style.setProperty("--share", (70 * weight / top).toFixed(0) + "%");
    return [shown, " "];
  }));
  const unknown = words.filter(w => w.role === "unknown").map(w => w.word), functions = words.filter(w => w.role === "function").map(w => w.word), notes = [];
  if (words.length && !words.some(w => w.role === "content")) notes.push(`The model knows no content word of this question: the answer rests on the picture and on ${quoted(functions)} alone.`);
  else if (unknown.length) notes.push(`Not known to the model: ${quoted(unknown)}.`);
  if (unread.length) notes.push(`It reads the first ${words.length} words only.`);
  show_notice(notes.join(" "));
}

export function show_notice(text) { $("notice").textContent = text; $("notice").hidden = !text; }

// A question that cannot be answered: why, and all its words struck out.
export function show_refusal(message, unknown) {
  $("answer").hidden = false;
  $("info").hidden = true;
  $("answer-text").textContent = "No answer";
  $("answer-score").textContent = $("verdict").textContent = "";
  $("truth").hidden = true;
  show_words([], []);
  $("words").append(...unknown.flatMap(word => [make("s", {}, word, make("span", { class: "unseen" }, " (unknown)")), " "]));
  show_notice(sentence(message.replace(/\.$/, "")));
}
