// The scanner: runs the prompt (the only thing here that is not just read), and shows the chosen token's numbers.
const find = (name) => document.getElementById(name);
const token = new URLSearchParams(location.search).get("token") || "";
const form = find("scan"), state = find("state"), slider = find("slider"), measure = find("measure");
let scan = null, values = null, running = false, again = false;

async function run() {
  if (running) { again = true; return; } // switches clicked meanwhile: once more with what is set then
  running = true;
  find("run").disabled = true;
  state.textContent = "…";
  document.body.setAttribute("aria-busy", "true");
  const ids = form.ids.value.split(/[\s,]+/).filter(Boolean).map(Number);
  const skip = [...document.querySelectorAll("input.branch:not(:checked)")].map((box) => box.value);
  const watch = setInterval(async () => {
    const found = await (await fetch("/scanner.json")).json();
    if (running && found.doing) state.textContent = found.doing;
  }, 500);
  const body = JSON.stringify({ prompt: form.prompt.value, ids, skip });
  try {
    const answer = await fetch(`/scan?token=${encodeURIComponent(token)}`, { method: "POST", body });
    const type = answer.headers.get("content-type") || "";
    const found = type.includes("json") ? await answer.json() : { error: await answer.text() };
    running = false;
    state.classList.toggle("problem", !answer.ok);
    if (answer.ok) { state.textContent = ""; show(found); } else state.textContent = found.error;
  } catch (error) { state.textContent = String(error); }
  clearInterval(watch);
  running = false;
  find("run").disabled = false;
  document.body.removeAttribute("aria-busy");
  if (again) { again = false; run(); }
}

function show(found) {
  scan = found;
  find("result").hidden = false;
  find("empty").hidden = true;
  for (const side of ["a", "b"]) find(`text-${side}`).textContent = found[side].text;
  const strip = find("tokens");
  strip.replaceChildren(...found.tokens.map((text, place) => {
    const one = document.createElement("button");
    one.type = "button";
    one.setAttribute("role", "option");
    one.textContent = text;
    const change = number(found.b.loss[place]) - number(found.a.loss[place]);
    one.title = `${place}: ${text}   A ${short(found.a.loss[place])}   B ${short(found.b.loss[place])}`;
    if (change > 0.02) one.dataset.level = Math.min(4, Math.ceil(Math.log2(1 + change * 4)));
    one.addEventListener("click", () => choose(place));
    return one;
  }));
  slider.max = found.tokens.length - 1;
  choose(Math.min(Number(slider.value), found.tokens.length - 1));
}

async function choose(place) {
  slider.value = place;
  const state = new URLSearchParams(location.search); // with the token: a page that is loaded again can still run
  state.set("t", place);
  state.set("measure", measure.value);
  history.replaceState(null, "", `?${state}`);
  [...find("tokens").children].forEach((one, at) => one.setAttribute("aria-selected", at === place));
  find("chosen").value = `${place}: ${scan.tokens[place]}   A ${short(scan.a.loss[place])}   B ${short(scan.b.loss[place])}`;
  const dark = matchMedia("(prefers-color-scheme: dark)").matches ? "&dark=1" : "";
  for (const image of document.querySelectorAll("img[data-kind]")) {
    image.src = `/scan.png?n=${scan.number}&kind=${image.dataset.kind}&map=${image.dataset.map}&measure=${measure.value}&t=${place}${dark}`;
  }
  const answer = await fetch(`/scanner.json?t=${place}`);
  values = (await answer.json()).values;
  for (const image of document.querySelectorAll("#blocks img")) {
    const all = values[image.dataset.map][measure.value].flat().map(number).filter(Number.isFinite).map(Math.abs);
    image.closest("figure").querySelector(".limit").textContent = all.length ? `± ${short(Math.max(...all))}` : "";
  }
}

const number = (value) => (typeof value === "number" ? value : Number(value === "Infinity" ? Infinity : value === "-Infinity" ? -Infinity : NaN));
const short = (value) => (typeof value === "number" ? String(Number(value.toPrecision(4))) : value);

for (const image of document.querySelectorAll("img[data-kind]")) {
  image.addEventListener("pointermove", (event) => {
    if (!scan || !values) return;
    const box = image.getBoundingClientRect();
    const layer = Math.min(scan.layers.length - 1, Math.floor(((event.clientY - box.top) / box.height) * scan.layers.length));
    const wide = image.dataset.kind === "blocks" ? scan.blocks : scan.tokens.length;
    const column = Math.min(wide - 1, Math.floor(((event.clientX - box.left) / box.width) * wide));
    if (image.dataset.kind === "blocks") {
      const name = measure.value;
      const told = ["a", "b", "d"].map((side) => `${{ a: "A", b: "B", d: "B−A" }[side]} ${short(values[side][name][layer][column])}`);
      find("cell").value = `${scan.layers[layer]}  [${column * 64}–${column * 64 + 63}]  ${told.join("   ")}`;
    } else find("cell").value = `${scan.layers[layer]}  ${column}: ${scan.tokens[column]}`;
  });
  if (image.dataset.kind === "layers") image.addEventListener("click", (event) => {
    const box = image.getBoundingClientRect();
    choose(Math.min(scan.tokens.length - 1, Math.floor(((event.clientX - box.left) / box.width) * scan.tokens.length)));
  });
}
form.addEventListener("submit", (event) => { event.preventDefault(); run(); });
document.addEventListener("change", (event) => {
  if (event.target.matches("input.branch") && scan) run();
  if (event.target === measure && scan) choose(Number(slider.value));
});
slider.addEventListener("input", () => choose(Number(slider.value)));
const help = () => find("keys").showModal();
document.querySelector(".help").addEventListener("click", help);
if (!token) { find("run").disabled = true; find("empty").textContent = find("empty").dataset.noToken; find("empty").classList.add("problem"); }
const before = new URLSearchParams(location.search);
if (before.get("measure")) measure.value = before.get("measure");
fetch("/scanner.json").then((answer) => answer.json()).then((found) => {
  if (!found.number) return;
  show(found);
  if (before.get("t")) choose(Math.min(Number(before.get("t")), found.tokens.length - 1));
});
