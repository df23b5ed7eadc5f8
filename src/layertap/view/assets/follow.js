// A page that shows runs which may still grow: it looks every second, and takes over what changed.
const main = document.getElementById("main");

async function follow() {
  let wait = 5000;
  try {
    const answer = await fetch(`/state.json?page=${main.dataset.page}`);
    if (answer.ok) {
      const state = await answer.json();
      if (state.version !== main.dataset.version) await reload();
      if (state.live) wait = 1000;
    }
  } catch { wait = 5000; } // the server was ended; the page stays as it is
  setTimeout(follow, wait);
}

async function reload() {
  const answer = await fetch(location.href);
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const now = fresh.getElementById("main");
  main.dataset.version = now.dataset.version;
  main.replaceChildren(...now.childNodes);
  document.getElementById("verdict").replaceWith(fresh.getElementById("verdict"));
}

document.addEventListener("keydown", (event) => {
  if (event.key === "?" && !event.target.matches("input, textarea, select")) help();
});
const help = () => document.getElementById("keys").showModal();
document.querySelector(".help")?.addEventListener("click", help);
for (const choice of document.querySelectorAll(".choose select")) {
  choice.addEventListener("change", () => choice.form.requestSubmit());
}
follow();
