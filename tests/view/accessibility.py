"""What axe-core calls serious, checked in the page itself: names, roles, contrast, ids, language, headings."""

CHECK = r"""
() => {
  const found = [];
  const seen = (node) => node.getClientRects().length > 0 && getComputedStyle(node).visibility !== "hidden";
  const named = (node) =>
    (node.getAttribute("aria-label") || node.getAttribute("title") || node.textContent || "").trim() ||
    [...(node.labels || [])].map((label) => label.textContent.trim()).join(" ");
  if (!document.documentElement.lang) found.push("the document has no language");
  if (!document.title) found.push("the document has no title");
  if (document.querySelectorAll("main").length !== 1) found.push("not exactly one main");
  if (document.querySelectorAll("h1").length !== 1) found.push("not exactly one h1");
  const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
  for (const id of new Set(ids)) if (ids.filter((other) => other === id).length > 1) found.push(`id twice: ${id}`);
  for (const node of document.querySelectorAll("a[href], button, input, select, textarea"))
    if (seen(node) && !named(node)) found.push(`no name: ${node.outerHTML.slice(0, 120)}`);
  for (const node of document.querySelectorAll("img"))
    if (!node.hasAttribute("alt")) found.push(`no alt: ${node.outerHTML.slice(0, 120)}`);
  for (const node of document.querySelectorAll("svg"))
    if (node.getAttribute("aria-hidden") !== "true" && !(node.getAttribute("role") === "img" && named(node)))
      found.push(`no name: ${node.outerHTML.slice(0, 120)}`);
  for (const node of document.querySelectorAll("[role=listbox] > *"))
    if (node.getAttribute("role") !== "option") found.push("a listbox holds what is no option");
  for (const node of document.querySelectorAll("[tabindex]"))
    if (node.tabIndex > 0) found.push("a positive tabindex");
  for (const node of document.querySelectorAll("table"))
    if (!node.querySelector("th")) found.push("a table without headers");

  const draw = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (text) => {
    draw.clearRect(0, 0, 1, 1);
    draw.fillStyle = text;
    draw.fillRect(0, 0, 1, 1);
    return [...draw.getImageData(0, 0, 1, 1).data].map((part, at) => (at === 3 ? part / 255 : part));
  };
  const over = (top, below) => top.slice(0, 3).map((part, at) => part * top[3] + below[at] * (1 - top[3])).concat(1);
  const behind = (node) => {
    const layers = [];
    for (let one = node; one; one = one.parentElement) layers.push(rgba(getComputedStyle(one).backgroundColor));
    return layers.reduceRight((below, top) => over(top, below), [255, 255, 255, 1]);
  };
  const light = ([r, g, b]) => {
    const curve = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    const [x, y, z] = [r, g, b].map((part) => curve(part / 255));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const told = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !seen(node)) continue;
    if (node.closest("option, script, svg, .lt-hidden, .skip")) continue;
    const below = behind(node);
    const one = light(over(rgba(getComputedStyle(node).color), below)), two = light(below);
    const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    const text = node.textContent.trim().slice(0, 40);
    if (ratio < 4.45) told.add(`contrast ${ratio.toFixed(2)} of ${node.tagName}.${node.className}: ${text}`);
  }
  return [...found, ...[...told].slice(0, 20)];
}
"""


def findings(page):
    """What is wrong with a page, in words."""
    return page.evaluate(CHECK)
