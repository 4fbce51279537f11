// Refresh the parts of a page that are marked with data-pq-live, every so many seconds, from the
// page itself. Not while the page is hidden, a field has the focus, text is selected or a row is
// ticked, nor while the button is pressed.
const button = document.getElementById("pq-pause");
const parts = [...document.querySelectorAll("[data-pq-live]")];
let etag = null;
let paused = false;

function busy() {
  const focused = document.activeElement;
  return (
    paused ||
    document.hidden ||
    (focused && focused.matches("input, select, textarea")) ||
    !getSelection().isCollapsed ||
    document.querySelector(".action-select:checked") !== null
  );
}

function replace(part, fresh) {
  const open = [...part.querySelectorAll("details[open][id]")].map((one) => one.id);
  const link = part.contains(document.activeElement) && document.activeElement.getAttribute("href");
  part.replaceChildren(...fresh.childNodes);
  for (const id of open) {
    document.getElementById(id)?.setAttribute("open", "");
  }
  if (link) {
    part.querySelector(`[href="${CSS.escape(link)}"]`)?.focus({ preventScroll: true });
  }
}

async function refresh() {
  const headers = etag ? { "If-None-Match": etag } : {};
  const answer = await fetch(location.href, { headers, cache: "no-store", redirect: "error" });
  if (answer.status === 200) {
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!busy()) {
      etag = answer.headers.get("ETag");
      for (const part of parts) {
        const fresh = page.getElementById(part.id);
        if (fresh) replace(part, fresh);
      }
    }
  }
}

async function turn() {
  if (!busy()) {
    try {
      await refresh();
    } catch {
      // The server is away or asks for a login: the next turn tries again.
    }
  }
  setTimeout(turn, parts[0].dataset.pqLive * 1000);
}

if (parts.length && button) {
  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", paused);
  });
  setTimeout(turn, parts[0].dataset.pqLive * 1000);
}
