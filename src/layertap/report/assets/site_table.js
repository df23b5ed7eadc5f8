// All site tables of a page: layers unfold, names are filtered, rows are chosen. Choosing tells the page by `lt-select`.
(() => {
  "use strict";
  const rowsOf = (box) => [...box.querySelectorAll("tr[data-site]")];
  const shown = (row) => row.getClientRects().length > 0;

  function select(row, { quiet = false } = {}) {
    const box = row.closest(".lt-box");
    for (const other of box.querySelectorAll("tr[aria-selected]")) other.removeAttribute("aria-selected");
    row.setAttribute("aria-selected", "true");
    const layer = row.closest(".lt-layer");
    if (layer) layer.classList.add("lt-open");
    row.scrollIntoView({ block: "nearest" });
    if (!quiet) row.dispatchEvent(new CustomEvent("lt-select", { bubbles: true, detail: { site: row.dataset.site } }));
  }

  function first(box) {
    const row = box.querySelector("tr[data-first]");
    if (row) { select(row); row.scrollIntoView({ block: "center" }); }
  }

  function step(box, by) {
    const rows = rowsOf(box).filter(shown);
    const now = rows.findIndex((row) => row.getAttribute("aria-selected") === "true");
    const next = rows[now < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(Math.max(now + by, 0), rows.length - 1)];
    if (next) select(next);
  }

  function filter(box) {
    const wanted = box.querySelector(".lt-filter").value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const rows = rowsOf(box);
    box.classList.toggle("lt-searching", wanted.length > 0);
    for (const row of rows) {
      const text = `${row.dataset.site} ${row.dataset.state}`.toLowerCase();
      row.hidden = !wanted.every((word) => text.includes(word));
    }
    tell(box, rows);
  }

  function tell(box, rows) {
    const count = box.querySelector(".lt-count");
    const seen = rows.filter(shown).length;
    count.value = count.dataset.shown.replace("{count}", seen).replace("{total}", rows.length);
  }

  document.addEventListener("click", (event) => {
    const box = event.target.closest(".lt-box");
    if (!box || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const cell = event.target.closest("a.lt-cell");
    if (cell) {
      event.preventDefault(); // also where a page in a frame must not follow the link itself
      const layer = document.getElementById(cell.getAttribute("href").slice(1));
      if (layer.classList.toggle("lt-open")) select(layer.querySelector("tr[data-first]") || layer.querySelector("tr.fault") || layer.rows[layer.rows.length - 1]);
      return;
    }
    if (event.target.closest(".lt-to-first")) { first(box); return; }
    const row = event.target.closest("tr[data-site]");
    if (row) { event.preventDefault(); select(row); }
  });

  document.addEventListener("input", (event) => {
    const box = event.target.closest(".lt-box");
    if (box && event.target.matches(".lt-filter")) filter(box);
    else if (box && event.target.matches(".lt-bad, .lt-unfold")) tell(box, rowsOf(box));
  });

  document.addEventListener("keydown", (event) => {
    const box = document.querySelector(".lt-box");
    if (!box || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input, textarea, select")) {
      if (event.key === "Escape" && event.target.matches(".lt-filter")) {
        event.target.value = "";
        event.target.blur();
        event.target.dispatchEvent(new Event("input", { bubbles: true })); // whoever filters in another way hears of it too
      } else if (event.key === "Escape") event.target.blur();
      else if (event.key === "Enter" && event.target.matches(".lt-filter")) { event.target.blur(); step(box, 0); }
      return;
    }
    const keys = { j: () => step(box, 1), k: () => step(box, -1), f: () => first(box), "/": () => box.querySelector(".lt-filter")?.focus() };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });

  window.layertapSiteTable = { select, first, step, filter };
})();
