"use strict";
// Shows, while the form is filled in, when the schedule would come, or what is wrong.
document.addEventListener("DOMContentLoaded", () => {
    const preview = document.getElementById("pq-preview");
    const form = preview && preview.closest("form");
    if (!form) {
        return;
    }
    const list = preview.querySelector("ul");
    const watched = /^(cron|every|timezone|starts_at_|ends_at_|delay|jitter)/;
    let timer = 0;
    let asked = 0;

    async function show() {
        const number = ++asked;
        const response = await fetch(preview.dataset.url, {method: "POST", body: new FormData(form)});
        if (!response.ok || number !== asked) {
            return;
        }
        const found = await response.json();
        const lines = found.wrong.length ? found.wrong : found.next;
        list.replaceChildren(...lines.map((line) => {
            const item = document.createElement("li");
            item.textContent = line;
            return item;
        }));
        list.classList.toggle("pq-below", found.wrong.length > 0);
        preview.hidden = false;
    }

    form.addEventListener("input", (event) => {
        if (watched.test(event.target.name)) {
            clearTimeout(timer);
            timer = setTimeout(show, 300);
        }
    });
});
