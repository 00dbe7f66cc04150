// All pictures that were looked at, in a table, with means over them and their intervals; as CSV and JSON.
import { $, make, percent, post } from "./base.js";

let rows = [], settings = {};

// One row for each picture and map: what the files have.
function rows_of(pictures, view) {
  settings = { place: view.place, layer: view.layer, head: view.head, exchange: view.exchange, ...view.values };
  rows = pictures.filter(p => p.reply).flatMap(({ name, reply }) => reply.maps.map(({ label, half, effective, support, mass, chance, low, high }) => ({
    picture: name, layer: reply.layer, head: reply.head ?? "mean", row: reply.cell?.[0] ?? "class token", column: reply.cell?.[1] ?? "class token", map: label,
    patches: reply.grid[0] * reply.grid[1], effective, half, support, mass, chance, "elsewhere low": low, "elsewhere high": high,
    ...Object.fromEntries(Object.entries(reply.answers).map(([map, answers]) => [`answer (${map})`, Object.keys(answers)[0]])),
  })));
}

export function show_table(pictures, view, open) {
  rows_of(pictures, view);
  const looked = pictures.filter(p => p.reply), place = $("look-table");
  $("look-pictures").hidden = !looked.length;
  if (!looked.length) return;
  const labels = looked[0].reply.maps.map(m => m.label), regions = looked.every(p => p.reply.maps[0].mass !== null), measure = regions ? "mass" : "half", answers = Object.keys(looked[0].reply.answers);
  $("look-measured").textContent = regions ? "The share of the attention in the region of each picture; chance is the region's share of the picture." : "Half of the attention lies on this share of the patches; even attention has 50 %. Draw a region in every picture to measure its mass.";
  const heads = ["picture", ...labels, ...(regions ? ["chance"] : []), ...answers.map(a => a === "model" ? "answer" : `answer, ${a.replace("-", " ")}`)];
  const body = looked.map(({ name, label, reply }) => make("tr", name === view.picture.name ? { "aria-current": "true" } : {},
    make("th", { scope: "row" }, make("button", { type: "button", class: "quiet", onclick: () => open(name) }, label)),
    ...reply.maps.map(m => make("td", {}, percent(m[measure], 1))), ...(regions ? [make("td", {}, percent(reply.maps[0].chance, 1))] : []),
    ...answers.map(a => make("td", { dir: "auto" }, Object.keys(reply.answers[a] ?? {})[0] ?? ""))));
  const foot = make("tfoot");
  place.replaceChildren(make("thead", {}, make("tr", {}, ...heads.map(h => make("th", { scope: "col" }, h)))), make("tbody", {}, ...body), foot);
  if (looked.length > 1) {
    const columns = Object.fromEntries(labels.map((label, i) => [label, looked.map(p => p.reply.maps[i][measure])]));
    if (regions) columns.chance = looked.map(p => p.reply.maps[0].chance);
    add_means(foot, columns, looked.length);
  }
}

// A line that the table lacks until it is there, and for good if it cannot be computed.
async function add_means(foot, columns, count) {
  let data;
  try { ({ data } = await post("api/means", { columns })); } catch { return; }
  const cell = ({ mean, low, high }, chance) => chance ? percent(mean, 1) : `${percent(mean, 1)} (${Math.round(100 * low)} to ${percent(high)})`;
  foot.replaceChildren(make("tr", {}, make("th", { scope: "row" }, `mean of ${count}, 95 %`), ...Object.keys(columns).map(name => make("td", {}, cell(data[name], name === "chance")))));
}

function save(name, kind, text) {
  const address = URL.createObjectURL(new Blob([text], { type: kind })), link = make("a", { href: address, download: name });
  document.body.append(link); link.click(); link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

const quoted = value => /[",\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value ?? "");

export function start_table() {
  $("look-json").addEventListener("click", () => save("look.json", "application/json", JSON.stringify({ settings, rows }, null, 1)));
  $("look-csv").addEventListener("click", () => {
    const names = [...new Set(rows.flatMap(Object.keys))];
    save("look.csv", "text/csv", [names, ...rows.map(row => names.map(name => row[name] ?? ""))].map(line => line.map(quoted).join(",")).join("\r\n") + "\r\n");
  });
}
