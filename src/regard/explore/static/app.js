// The page: its three tabs, and the link to a view.
import { $, read_state, say, write_state } from "./base.js";
import { start_ask } from "./ask.js";
import { start_playground } from "./playground.js";
import { start_transport } from "./transport.js";

const tabs = ["ask", "playground", "transport"], started = {};
const starters = { ask: start_ask, playground: start_playground, transport: start_transport };

async function open(name, focus = false) {
  for (const tab of tabs) {
    const chosen = tab === name, button = $("tab-" + tab);
    button.setAttribute("aria-selected", chosen);
    button.tabIndex = chosen ? 0 : -1;
    $(tab).hidden = !chosen;
    if (chosen && focus) button.focus();
  }
  write_state({ tab: name });
  say("");
  if (!started[name]) { started[name] = true; await starters[name](open); }
}

for (const [i, tab] of tabs.entries()) {
  $("tab-" + tab).addEventListener("click", () => open(tab));
  $("tab-" + tab).addEventListener("keydown", event => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) { event.preventDefault(); open(tabs[(i + step + tabs.length) % tabs.length], true); }
  });
}
$("share").addEventListener("click", async () => {
  try { await navigator.clipboard.writeText(location.href); say("The link to this view is copied. An uploaded picture is not part of it."); }
  catch { say("Copy the address of this page: it holds the view."); }
});
window.addEventListener("hashchange", () => location.reload());

const first = read_state().tab;
await open(tabs.includes(first) ? first : "ask");
document.documentElement.dataset.ready = "yes";
