// A site table of many thousand rows: one body of rows for each part, filled when it comes into view and emptied after.
const HEIGHT = 22;

export function longTable(root, params) {
  const size = Number(root.dataset.part);
  const table = root.querySelector("table");
  const box = root.querySelector(".lt-box");
  const scroller = root.closest("section");
  let seen = new Set();
  let turn = 0;

  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) entry.isIntersecting ? fill(entry.target) : empty(entry.target);
  }, { root: scroller, rootMargin: "1200px" });

  async function fill(body) {
    if (seen.has(body)) return;
    seen.add(body);
    const now = turn;
    const asked = params();
    asked.set("from", body.dataset.from);
    asked.set("count", size);
    const answer = await fetch(`/rows.json?${asked}`);
    const found = await answer.json();
    if (now !== turn || !seen.has(body)) return;
    body.innerHTML = found.html;
  }

  function empty(body) {
    if (!seen.delete(body)) return;
    body.replaceChildren(spacer(Number(body.dataset.rows)));
  }

  function spacer(rows) {
    const row = document.createElement("tr");
    const cell = row.insertCell();
    cell.colSpan = 20;
    cell.className = "space";
    cell.style.height = `${rows * HEIGHT}px`; // not the attribute: a style of the site table's cells would win
    return row;
  }

  function lay(total) {
    turn += 1;
    seen = new Set();
    watcher.disconnect();
    for (const body of [...table.tBodies]) body.remove();
    for (let from = 0; from < total; from += size) {
      const body = table.createTBody();
      body.dataset.from = from;
      body.dataset.rows = Math.min(size, total - from);
      body.append(spacer(Number(body.dataset.rows)));
      watcher.observe(body);
    }
    const count = box.querySelector(".lt-count");
    count.value = count.dataset.shown.replace("{count}", total).replace("{total}", root.dataset.total);
  }

  async function again() {
    const asked = params();
    asked.set("count", "1");
    const found = await (await fetch(`/rows.json?${asked}`)).json();
    lay(found.total);
  }

  let waiting;
  box.addEventListener("input", (event) => {
    event.stopPropagation(); // the rows that are here are not all: the server filters
    const now = params();
    if (event.target.matches(".lt-filter")) event.target.value ? now.set("q", event.target.value) : now.delete("q");
    if (event.target.matches(".lt-bad")) event.target.checked ? now.set("bad", "1") : now.delete("bad");
    history.replaceState(null, "", `?${now}`);
    clearTimeout(waiting);
    waiting = setTimeout(again, 250);
  });
  box.querySelector(".lt-to-first")?.addEventListener("click", async (event) => {
    event.stopPropagation();
    goto(Number(root.dataset.place));
  });

  async function goto(place) {
    if (place < 0) return;
    const body = table.tBodies[Math.floor(place / size)];
    scroller.scrollTop = body.offsetTop + (place % size) * HEIGHT - scroller.clientHeight / 2;
    await fill(body);
    body.querySelector("tr[data-first]")?.scrollIntoView({ block: "center" });
  }

  lay(Number(root.dataset.total));
  if (params().get("q") || params().get("bad")) again();
  else if (!params().get("site")) goto(Number(root.dataset.place));
}
