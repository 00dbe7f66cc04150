// What a model adds to Look: layers and heads as small pictures on one scale, and the likeliest classes under each map.
import { $, make, percent } from "./base.js";
import { backdrop, cells, highest } from "./draw.js";

const WIDE = 84, LEAST = 2;  // pixels of a small picture; the top of the scale at least, in multiples of even attention
const NAMES = { model: "the model's own map" };
const readable = name => NAMES[name] ?? name.replace("-", " ") + " in every layer";
const mean = heads => heads[0].map((row, j) => row.map((_, i) => heads.reduce((sum, head) => sum + head[j][i], 0) / heads.length));

export function show_answers(reply) {
  const all = Object.entries(reply.answers), own = reply.answers.model ?? {};
  $("look-answers").hidden = !all.length;
  const bar = (name, label, share) => make("li", {}, make("span", { dir: "auto" }, label), make("meter", { min: 0, max: 1, value: share, "aria-label": `share of ${label}` }),
    make("span", {}, percent(share, 1), name !== "model" && !(label in own) ? " (new)" : ""));
  const list = (name, answers) => make("div", {}, make("h3", {}, readable(name)), make("ol", { class: "bars" }, ...Object.entries(answers).map(([label, share]) => bar(name, label, share))));
  $("look-answers-lists").replaceChildren(...all.map(([name, answers]) => list(name, answers)));
}

// Rows are layers, columns heads, the mean first. Arrow keys go from one to the next, as among radio buttons.
export function show_multiples(reply, picture, shape, choose) {
  const sets = Object.entries(reply.multiples), place = $("look-multiples");
  $("look-layers").hidden = !sets.length;
  if (!sets.length) return;
  const top = Math.max(LEAST, ...sets.flatMap(([, layers]) => layers.flatMap(heads => heads.map(highest))));
  $("look-layers-scale").textContent = `All on one scale: yellow is ${+top.toPrecision(3)} × even attention.`;
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.at : null;
  place.replaceChildren(...sets.map(([name, layers]) => {
    const own = name === "model", rows = layers.map((heads, layer) => {
      const panels = [[null, mean(heads)], ...heads.map((values, head) => [head, values])];
      return make("div", { class: "multiples-row" }, make("span", {}, `layer ${layer}`), ...panels.map(([head, values]) => one_small(values, top, picture, shape, {
        at: `${name}.${layer}.${head ?? "mean"}`, label: `layer ${layer}, ${head === null ? "mean of heads" : `head ${head}`}`, chosen: own && layer === reply.layer && head === reply.head, own, act: () => choose(layer, head),
      })));
    });
    const most = Math.max(...layers.map(heads => heads.length)), numbers = Array.from({ length: most }, (_, head) => make("span", {}, head));
    const top_row = make("div", { class: "multiples-row heads", "aria-hidden": "true" }, make("span", {}, "head"), make("span", {}, "mean"), ...numbers);
    const group = make("div", { role: own ? "radiogroup" : "group", "aria-label": `Layers and heads, ${readable(name)}` }, make("h3", {}, readable(name)), top_row, ...rows);
    group.style.setProperty("--columns", most + 1);
    return group;
  }));
  if (focused) place.querySelector(`[data-at="${focused}"]`)?.focus();
}

function one_small(values, top, picture, shape, { at, label, chosen, own, act }) {
  const canvas = make("canvas", { width: WIDE, height: Math.round(WIDE * shape), "aria-hidden": "true" });
  backdrop(canvas, picture);
  cells(canvas, values, top, 0.9);
  if (!own) return make("figure", { class: "small", title: label }, canvas);
  return make("button", { type: "button", role: "radio", class: "small", "data-at": at, "aria-checked": String(chosen), "aria-label": label, title: label, tabindex: chosen ? 0 : -1, onclick: act, onkeydown: step }, canvas);
}

function step(event) {
  const here = event.currentTarget, row = here.parentElement, at = [...row.children].indexOf(here);
  const to = { ArrowLeft: here.previousElementSibling, ArrowRight: here.nextElementSibling, ArrowUp: row.previousElementSibling?.children[at], ArrowDown: row.nextElementSibling?.children[at] }[event.key];
  if (!event.key.startsWith("Arrow")) return;
  event.preventDefault();
  if (to?.matches("button")) { to.focus(); to.click(); }
}
