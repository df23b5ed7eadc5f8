// Maps of a tensor: the value under the pointer, a closer look by dragging.
export function maps(panel, show) {
  for (const figure of panel.querySelectorAll("figure.map")) {
    const image = figure.querySelector("img");
    const cell = panel.querySelector("output.cell");
    let start = null, mark = null, waiting = 0, last = "";

    const at = (event) => {
      const box = image.getBoundingClientRect();
      const share = (value, size) => Math.min(Math.max(value / size, 0), 0.999999);
      return [share(event.clientX - box.left, box.width), share(event.clientY - box.top, box.height)];
    };

    image.addEventListener("pointermove", (event) => {
      const [x, y] = at(event);
      if (start) { draw(start, [x, y]); return; }
      const place = [Math.floor(x * image.naturalWidth), Math.floor(y * image.naturalHeight)];
      if (String(place) === last) return;
      last = String(place);
      clearTimeout(waiting);
      waiting = setTimeout(() => tell(place), 40);
    });
    image.addEventListener("pointerleave", () => { clearTimeout(waiting); last = ""; });

    async function tell([x, y]) {
      const asked = new URL(image.currentSrc || image.src).searchParams;
      for (const [name, value] of Object.entries({ x, y, w: image.naturalWidth, h: image.naturalHeight })) asked.set(name, value);
      const answer = await fetch(`/cell.json?${asked}`);
      if (!answer.ok) return;
      const found = await answer.json();
      if (!found.index) { cell.value = ""; return; }
      const names = { a: "A", b: "B", d: "B−A" };
      const shown = Object.keys(names).filter((name) => name in found).map((name) => `${names[name]} ${short(found[name])}`);
      cell.value = `[${found.index.join(", ")}]  ${shown.join("   ")}${found.of > 1 ? `   (1/${found.of})` : ""}`;
    }

    image.addEventListener("pointerdown", (event) => { event.preventDefault(); image.setPointerCapture(event.pointerId); start = at(event); });
    image.addEventListener("pointerup", (event) => {
      const from = start, to = at(event);
      start = null;
      mark?.remove(); mark = null;
      if (!from || Math.abs(from[0] - to[0]) + Math.abs(from[1] - to[1]) < 0.03) return;
      const asked = new URL(image.currentSrc || image.src).searchParams;
      const now = (asked.get("window") || "").split(",").map(Number);
      const [top, left, height, width] = now.length === 4 ? now : [0, 0, Number(figure.dataset.rows), Number(figure.dataset.columns)];
      const [x0, x1] = [from[0], to[0]].sort((a, b) => a - b), [y0, y1] = [from[1], to[1]].sort((a, b) => a - b);
      const rows = Math.max(1, Math.ceil((y1 - y0) * height)), columns = Math.max(1, Math.ceil((x1 - x0) * width));
      show({ window: [top + Math.floor(y0 * height), left + Math.floor(x0 * width), rows, columns].join(",") });
    });

    function draw(from, to) {
      if (!mark) { mark = document.createElement("span"); mark.className = "drag"; figure.append(mark); }
      const box = image.getBoundingClientRect(), base = figure.getBoundingClientRect();
      const low = [Math.min(from[0], to[0]), Math.min(from[1], to[1])], high = [Math.max(from[0], to[0]), Math.max(from[1], to[1])];
      mark.style.left = `${box.left - base.left + low[0] * box.width}px`;
      mark.style.top = `${box.top - base.top + low[1] * box.height}px`;
      mark.style.width = `${(high[0] - low[0]) * box.width}px`;
      mark.style.height = `${(high[1] - low[1]) * box.height}px`;
    }
  }
}

const short = (value) => (typeof value === "number" ? Number(value.toPrecision(5)).toString() : value);
