// Refresh the parts of a page that are marked with data-pq-live, every so many seconds, from the
// page itself. Not while the page is hidden, a field has the focus, text is selected or a row is
// ticked, nor while the button is pressed. Say since when it could not, and why.
const bar = document.getElementById("pq-live");
const button = document.getElementById("pq-pause");
const parts = [...document.querySelectorAll("[data-pq-live]")];
const every = bar?.dataset.pqEvery * 1000;
let refreshed = performance.now();
let failed = false;
let paused = false;

function busy() {
  const focused = document.activeElement;
  return (
    paused ||
    document.hidden ||
    (focused && focused.matches("input, select, textarea, button")) ||
    !getSelection().isCollapsed ||
    document.querySelector(".action-select:checked") !== null
  );
}

// The details of a part, each with its title and how many before it have the same.
function folds(part) {
  const seen = {};
  return [...part.querySelectorAll("details")].map((fold) => {
    const title = fold.querySelector("summary").textContent;
    seen[title] = (seen[title] || 0) + 1;
    return [`${title} ${seen[title]}`, fold];
  });
}

function replace(part, fresh) {
  const open = new Map(folds(part).map(([name, fold]) => [name, fold.open]));
  const scrolled = [...part.querySelectorAll("[tabindex]")].map((box) => box.scrollLeft);
  const link = part.contains(document.activeElement) && document.activeElement.getAttribute("href");
  part.replaceChildren(...fresh.childNodes);
  for (const [name, fold] of folds(part)) {
    if (open.has(name)) fold.open = open.get(name);
  }
  part.querySelectorAll("[tabindex]").forEach((box, number) => {
    box.scrollLeft = scrolled[number] || 0;
  });
  if (link) {
    part.querySelector(`[href="${CSS.escape(link)}"]`)?.focus({ preventScroll: true });
  }
}

async function refresh() {
  const answer = await fetch(location.href, {
    cache: "no-store",
    signal: AbortSignal.timeout(2 * every),
  });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const denied = [401, 403].includes(answer.status);
  document.getElementById("pq-login").hidden = !denied && !page.querySelector("[type=password]");
  if (!answer.ok || !page.getElementById("pq-live")) throw new Error("This is another page.");
  refreshed = performance.now();
  if (!busy()) {
    for (const part of parts) {
      const fresh = page.getElementById(part.id);
      if (fresh) replace(part, fresh);
    }
  }
}

function say() {
  const seconds = Math.round((performance.now() - refreshed) / 1000);
  const stale = document.getElementById("pq-stale");
  stale.hidden = !failed;
  stale.firstElementChild.textContent = bar.dataset.pqStale.replace("{seconds}", seconds);
}

async function turn() {
  if (!busy()) {
    try {
      await refresh();
      failed = false;
    } catch {
      // The server is away, or asks for a login: the next turn tries again.
      failed = true;
    }
  }
  setTimeout(turn, every);
}

if (bar) {
  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", paused);
    button.blur();
  });
  setInterval(say, 1000);
  setTimeout(turn, every);
}

// Offer, while a field is filled in, what is known that begins so.
for (const field of document.querySelectorAll("[data-pq-known]")) {
  const offers = document.createElement("datalist");
  offers.id = `pq-known-${field.name}`;
  field.after(offers);
  field.setAttribute("list", offers.id);
  field.autocomplete = "off";
  let typed = 0;
  field.addEventListener("input", async () => {
    const turn = ++typed;
    await new Promise((done) => setTimeout(done, 200));
    if (turn !== typed || !field.value) return;
    const url = `${field.dataset.pqKnown}&q=${encodeURIComponent(field.value)}`;
    const answer = await fetch(url).catch(() => null);
    if (turn !== typed || !answer?.ok) return;
    const { known } = await answer.json().catch(() => ({ known: [] }));
    offers.replaceChildren(...known.map((value) => new Option(value, value)));
  });
}
