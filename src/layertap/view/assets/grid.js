// Heat maps of sites over steps: which cell lies under the pointer, and a click opens the site at that step.

function under(event) {
  const figure = event.target.closest?.("figure.grid");
  const drawing = figure?.querySelector("svg");
  if (!drawing) return null;
  const { steps, sites, plot, a, b } = JSON.parse(figure.dataset.grid);
  const [left, top, width, height, wide, high] = plot;
  const box = drawing.getBoundingClientRect();
  const x = ((event.clientX - box.left) / box.width) * wide - left, y = ((event.clientY - box.top) / box.height) * high - top;
  if (x < 0 || y < 0 || x >= width || y >= height) return null;
  const column = Math.floor((x / width) * steps.length), row = Math.floor((y / height) * sites.length);
  return { figure, a, b, step: steps[column], next: steps[column + 1], site: sites[row] };
}

document.addEventListener("pointermove", (event) => {
  const found = under(event);
  for (const figure of document.querySelectorAll("figure.grid")) figure.classList.toggle("over", figure === found?.figure);
  if (found) document.getElementById("cell").value = `${found.site}  @ ${found.step}`;
});
document.addEventListener("click", (event) => {
  const found = under(event);
  if (found) location.href = `/?${new URLSearchParams({ a: found.a, b: found.b, site: found.site, step: found.step })}`;
});
