// What the tabs share: elements, requests to the server, the state in the URL, sliders.

export const $ = id => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export function say(text) { $("message").textContent = text; }

// The progress bar shows once a request has taken a quarter of a second, for as long as any is pending.
let pending = 0;
async function with_progress(promise) {
  let shown = false;
  const timer = setTimeout(() => { pending += 1; $("progress").hidden = false; shown = true; }, 250);
  try { return await promise; }
  finally {
    clearTimeout(timer);
    if (shown && --pending === 0) $("progress").hidden = true;
  }
}

export async function post(path, body) {
  const form = body instanceof FormData;
  const options = { method: "POST", body: form ? body : JSON.stringify(body) };
  if (!form) options.headers = { "content-type": "application/json" };
  for (let attempt = 0; ; attempt += 1) {
    let response;
    try { response = await with_progress(fetch(path, options)); }
    catch { throw new Error("The server does not answer. Is it still running?"); }
    const text = await response.text();
    if (response.ok) return { data: JSON.parse(text), text };
    if (response.status === 503 && attempt < 3) {
      say("The server is busy; trying again …");
      await with_progress(new Promise(resolve => setTimeout(resolve, 600 * (attempt + 1))));
      continue;
    }
    let reply = { error: response.statusText };
    try { reply = JSON.parse(text); } catch { /* not JSON, so not from this server: keep the status */ }
    throw Object.assign(new Error(reply.error), { reply });
  }
}

// One call at a time: when it returns, the newest of the calls that came meanwhile is run, and the others are dropped.
export function latest(work) {
  let running = false, next = null;
  return async function again(...args) {
    if (running) { next = args; return; }
    running = true;
    try { await work(...args); say(""); }
    catch (error) { say(error.message); }
    running = false;
    if (next) { const waiting = next; next = null; again(...waiting); }
  };
}

// The state is in the fragment of the URL, so that a view can be shared as a link.
export function read_state() { return Object.fromEntries(new URLSearchParams(location.hash.slice(1))); }

// What an address cannot hold, a picture that was uploaded, is kept by number in the entries of the history.
export const kept = { upload: null };

// Write changes into the address. `how`: "step", an entry of the history of its own, to which Back returns; "drag", one
// entry for all changes of the same values in a row; default none, the entry that is there.
let dragged = "";
export function write_state(changes, how = "") {
  const state = { ...read_state(), ...changes };
  for (const key of Object.keys(state)) if (state[key] === "" || state[key] == null) delete state[key];
  const address = "#" + new URLSearchParams(state), values = Object.keys(changes).join();
  if (address === location.hash && history.state?.upload === kept.upload) return;
  const step = how === "step" || (how === "drag" && values !== dragged);
  dragged = how === "drag" ? values : "";
  history[step ? "pushState" : "replaceState"]({ upload: kept.upload }, "", address);
}
window.addEventListener("popstate", () => { dragged = ""; });

// Sliders: {name: {label, min, max, step, value, whole, log, unit}}; `whole` for integers, `log` for a logarithmic
// scale; `unit` is read out after the number.
export function sliders(place, settings, changed, prefix) {
  const values = {}, state = read_state();
  place.replaceChildren();
  for (const [name, s] of Object.entries(settings)) {
    const stored = parseFloat(state[prefix + name]);
    values[name] = Number.isFinite(stored) ? Math.min(Math.max(stored, s.min), s.max) : s.value;
    const out = make("output", {}), scale = s.log ? Math.log10 : x => x;
    const input = make("input", {
      type: "range", id: prefix + name, min: scale(s.min), max: scale(s.max), step: s.step,
      oninput: () => {
        const raw = parseFloat(input.value);
        values[name] = s.log ? +Math.min(Math.max(10 ** raw, s.min), s.max).toPrecision(3) : raw;
        show(); write_state({ [prefix + name]: values[name] }, "drag"); changed(name);
      },
    });
    const show = () => {
      const number = s.whole ? String(values[name]) : String(+values[name].toPrecision(3));
      out.textContent = s.unit === "percent" ? number + "\u00a0%" : number;
      input.setAttribute("aria-valuetext", `${number} ${s.unit || s.label}`);
    };
    input.value = scale(values[name]);
    show();
    place.append(make("label", { for: input.id }, s.label, out, input));
  }
  return values;
}

// Radio buttons or checkboxes that look like chips or pictures: the browser's own, so that keys and readers know them.
export function choices(place, type, name, options, changed) {
  place.replaceChildren(...options.map(({ value, label, content }) => make("label", { class: "choice" },
    make("input", { type, name, value, "aria-label": content ? label : null, onchange: event => changed(value, event.target.checked) }), content || make("span", {}, label))));
}

export function check(place, chosen) {
  for (const input of place.querySelectorAll("input")) input.checked = chosen.includes(input.value);
}

export function numbers(place, rows) {
  place.replaceChildren(...rows.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

export const percent = (x, digits = 0) => (100 * x).toFixed(digits) + "\u00a0%";
