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
    let message = response.statusText;
    try { message = JSON.parse(text).error; } catch { /* not JSON, so not from this server: keep the status */ }
    throw new Error(message);
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
export function write_state(changes) {
  const state = { ...read_state(), ...changes };
  for (const key of Object.keys(state)) if (state[key] === "" || state[key] == null) delete state[key];
  history.replaceState(null, "", "#" + new URLSearchParams(state));
}

// Sliders: {name: {label, min, max, step, value, whole, log}}; `whole` for integers, `log` for a logarithmic scale.
export function sliders(place, settings, changed, prefix) {
  const values = {}, state = read_state();
  place.replaceChildren();
  for (const [name, s] of Object.entries(settings)) {
    const stored = parseFloat(state[prefix + name]);
    values[name] = Number.isFinite(stored) ? Math.min(Math.max(stored, s.min), s.max) : s.value;
    const out = make("output", {});
    const show = () => { out.textContent = s.whole ? values[name] : +values[name].toPrecision(3); };
    const scale = s.log ? Math.log10 : x => x;
    const input = make("input", {
      type: "range", id: prefix + name, min: scale(s.min), max: scale(s.max), step: s.step,
      oninput: () => {
        const raw = parseFloat(input.value);
        values[name] = s.log ? +Math.min(Math.max(10 ** raw, s.min), s.max).toPrecision(3) : raw;
        show(); write_state({ [prefix + name]: values[name] }); changed(name);
      },
    });
    input.value = scale(values[name]);
    show();
    place.append(make("label", { for: input.id }, s.label, out, input));
  }
  return values;
}

export function numbers(place, rows) {
  place.replaceChildren(...rows.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

export const percent = (x, digits = 0) => (100 * x).toFixed(digits) + " %";
