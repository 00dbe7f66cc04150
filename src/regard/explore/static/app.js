// The page: its tabs, the link to a view, and the way back to earlier ones.
import { $, read_state, say, write_state } from "./base.js";
import { restore_ask, start_ask } from "./ask.js";
import { restore_look, start_look } from "./look.js";
import { restore_playground, start_playground } from "./playground.js";
import { restore_transport, start_transport } from "./transport.js";

const started = {};
const starters = { look: start_look, ask: start_ask, playground: start_playground, transport: start_transport };
const restorers = { look: restore_look, ask: restore_ask, playground: restore_playground, transport: restore_transport };

const server = await (await fetch("api/state")).json();
const tabs = Object.keys(starters).filter(tab => tab !== "ask" || server.model), first = server.model && !server.look.model ? "ask" : "look";
if (server.model) $("tab-ask").hidden = false;
else $("no-model").textContent = server.hint;

// The tab of the address; `restored` when the address is of an earlier view, which is then shown again.
async function show_tab(restored) {
  const asked = read_state().tab, name = tabs.includes(asked) ? asked : first;
  for (const tab of tabs) {
    $("tab-" + tab).setAttribute("aria-selected", tab === name);
    $("tab-" + tab).tabIndex = tab === name ? 0 : -1;
    $(tab).hidden = tab !== name;
  }
  $("no-model").hidden = Boolean(server.model) || Boolean(server.look.model) || !server.hint || name !== "look";
  say("");
  if (!started[name]) { started[name] = true; await starters[name](server); }
  else if (restored) await restorers[name]();
}

function open(name, focus = false) {
  write_state({ tab: name }, "step");
  if (focus) $("tab-" + name).focus();
  return show_tab(false);
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
window.addEventListener("popstate", () => show_tab(true));

await show_tab(false);
document.documentElement.dataset.ready = "yes";
