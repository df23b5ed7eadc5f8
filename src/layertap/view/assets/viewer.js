// The first page: the chosen site beside the site table, the address that holds the state, keys, and runs that still grow.
import { longTable } from "./long.js";
import { maps } from "./maps.js";

const siteTable = document.getElementById("sites");
const panel = document.getElementById("site");
const params = () => new URLSearchParams(location.search);
const put = (changes) => {
  const now = params();
  for (const [name, value] of Object.entries(changes)) value === "" || value === null ? now.delete(name) : now.set(name, value);
  history.replaceState(null, "", `?${now}`);
  return now;
};
// The site of the panel: the chosen one, or the first departure where none is.
const shown = () => params().get("site") || panel.querySelector("h2")?.dataset.panel || "";
let asked = 0;

export async function showSite(changes) {
  const now = put({ site: shown(), ...changes });
  if (!now.get("site")) return;
  const number = ++asked;
  panel.classList.add("loading");
  const answer = await fetch(`/site.html?${now}`);
  const text = await answer.text();
  if (number !== asked) return; // another site was chosen meanwhile
  if (answer.ok) panel.innerHTML = text;
  else panel.textContent = text;
  panel.classList.remove("loading");
  maps(panel, showSite);
}

siteTable.addEventListener("lt-select", (event) => showSite({ site: event.detail.site, index: "", window: "" }));

panel.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-put]");
  if (!link || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  showSite(Object.fromEntries(new URLSearchParams(link.dataset.put)));
});
panel.addEventListener("change", (event) => {
  if (event.target.dataset.name) showSite({ [event.target.dataset.name]: event.target.value });
});

// A token recolours the site table by its own errors.
document.addEventListener("click", (event) => {
  const link = event.target.closest("#tokens a[data-put]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const token = new URLSearchParams(link.dataset.put).get("t");
  put({ t: token });
  reload().then(() => document.querySelector(`#tokens a[data-put="t=${token}"]`)?.focus());
});

// The filter is a part of the state too.
siteTable.addEventListener("input", (event) => {
  if (event.target.matches(".lt-filter")) put({ q: event.target.value });
  if (event.target.matches(".lt-bad")) put({ bad: event.target.checked ? "1" : "" });
  if (event.target.matches(".lt-unfold")) put({ all: event.target.checked ? "1" : "" });
});

function restore() {
  const now = params();
  const box = siteTable.querySelector(".lt-box");
  if (!box) return;
  for (const [name, css] of [["bad", ".lt-bad"], ["all", ".lt-unfold"]]) {
    const check = box.querySelector(css);
    if (check && now.get(name)) { check.checked = true; check.dispatchEvent(new Event("input", { bubbles: true })); }
  }
  const filter = box.querySelector(".lt-filter");
  if (now.get("q")) { filter.value = now.get("q"); filter.dispatchEvent(new Event("input", { bubbles: true })); }
  const long = siteTable.querySelector(".long");
  if (long) longTable(long, params);
}

document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "?") { event.preventDefault(); help(); }
  if (event.key === "Enter" && !event.target.closest("a, button, summary")) {
    const row = siteTable.querySelector("tr[aria-selected]");
    if (row) showSite({ site: row.dataset.site }).then(() => panel.querySelector("h2")?.focus());
  }
});
const help = () => document.getElementById("keys").showModal();
document.querySelector(".help")?.addEventListener("click", help);
for (const choice of document.querySelectorAll(".choose select")) {
  choice.addEventListener("change", () => choice.form.requestSubmit());
}

// A run that is still written, or a comparison that is still made: look every second, load again what changed.
let version = document.getElementById("main").dataset.version;
async function follow() {
  let wait = 1000;
  try {
    const answer = await fetch(`/state.json?${params()}`);
    if (answer.ok) {
      const state = await answer.json();
      if (state.version !== version) await reload();
      const bar = document.querySelector("#verdict progress");
      if (bar && state.total) { bar.max = state.total; bar.value = state.done; }
      if (!state.live && !state.comparing) wait = 5000;
    }
  } catch { wait = 5000; } // the server was ended; the page stays as it is
  setTimeout(follow, wait);
}

async function reload() {
  const answer = await fetch(`/?${params()}`);
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  version = fresh.getElementById("main").dataset.version;
  const place = siteTable.scrollTop;
  for (const name of ["verdict", "tokens"]) {
    const now = document.getElementById(name), next = fresh.getElementById(name);
    if (now && next) now.replaceWith(next);
    else if (next) document.getElementById("main").before(next);
    else now?.remove();
  }
  const opened = [...siteTable.querySelectorAll(".lt-layer.lt-open")].map((layer) => layer.id);
  siteTable.replaceChildren(...fresh.getElementById("sites").childNodes);
  for (const id of opened) document.getElementById(id)?.classList.add("lt-open");
  restore();
  siteTable.scrollTop = place;
  if (params().get("site")) await showSite({});
  else {
    panel.replaceChildren(...fresh.getElementById("site").childNodes);
    maps(panel, showSite);
  }
}

restore();
maps(panel, showSite);
const chosen = siteTable.querySelector("tr[aria-selected]");
if (chosen) chosen.scrollIntoView({ block: "center" });
else siteTable.querySelector("tr[data-first]")?.scrollIntoView({ block: "center" });
follow();
