// What pages do in the browser: follow a table, load slow parts, run SQL.
"use strict";

const EVERY_MS = 2000;

// -- parts that follow a table ---------------------------------------------------------------

const followed = [...document.querySelectorAll("[data-live]")];
const told = document.querySelector("[data-live-status]");
const pauseButton = document.querySelector("[data-live-pause]");
const states = new Map();
let isPaused = false;
let isAsking = false;

function tell(text) {
  if (told && told.textContent !== text) told.textContent = text;
}

// Replaces content, and keeps the selection, focus and scroll position.
function replace(part, text) {
  const focused = document.activeElement && part.contains(document.activeElement) ? document.activeElement.id : "";
  const chosen = [...part.querySelectorAll("input:checked")].map((each) => each.id);
  const before = new Set([...part.querySelectorAll("tr[id]")].map((each) => each.id));
  const scrolled = [...part.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  part.innerHTML = text;
  for (const id of chosen) {
    const input = document.getElementById(id);
    if (input) input.checked = true;
  }
  if (before.size) {
    for (const row of part.querySelectorAll("tr[id]")) {
      if (!before.has(row.id)) row.classList.add("fresh");
    }
  }
  part.querySelectorAll(".scroll").forEach((each, place) => { each.scrollLeft = scrolled[place] || 0; });
  if (focused) {
    const again = document.getElementById(focused);
    if (again) again.focus({ preventScroll: true });
  }
}

async function ask(part) {
  const state = states.get(part);
  const answer = await fetch(part.dataset.live, {
    cache: "no-store",
    headers: state ? { "If-None-Match": state } : {},
  });
  if (answer.status === 304) return;
  if (!answer.ok) throw new Error(String(answer.status));
  const text = await answer.text();
  const isFirst = !state;
  states.set(part, answer.headers.get("ETag") || "");
  if (!isFirst || part.innerHTML.trim() !== text.trim()) replace(part, text);
}

async function follow() {
  if (isPaused || isAsking || document.hidden) return;
  isAsking = true;
  try {
    for (const part of followed) await ask(part);
    tell("Following the table.");
    document.body.classList.add("is-live");
  } catch (error) {
    document.body.classList.remove("is-live");
    tell("The server does not answer. This is its last answer.");
  } finally {
    isAsking = false;
  }
}

if (followed.length) {
  setInterval(follow, EVERY_MS);
  document.addEventListener("visibilitychange", follow);
  follow();
}

if (followed.length && pauseButton) {
  pauseButton.hidden = false;
  pauseButton.addEventListener("click", () => {
    isPaused = !isPaused;
    pauseButton.setAttribute("aria-pressed", String(isPaused));
    document.body.classList.toggle("is-live", false);
    tell(isPaused ? "Paused." : "Following the table.");
    follow();
  });
}

// If there is no room for all commits, show the latest.
for (const drawn of document.querySelectorAll(".timeline-picture")) {
  drawn.parentElement.scrollLeft = drawn.parentElement.scrollWidth;
}

// -- parts that take longer ------------------------------------------------------------------

for (const part of document.querySelectorAll("[data-load]")) {
  fetch(part.dataset.load, { cache: "no-store" })
    .then((answer) => (answer.ok ? answer.text() : Promise.reject(answer.status)))
    .then((text) => { part.innerHTML = text; })
    .catch(() => {}); // the link to the page stays
}

// -- SQL -------------------------------------------------------------------------------------

for (const field of document.querySelectorAll("[data-submit]")) {
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      field.form.requestSubmit(field.form.querySelector("button[value=run]"));
    }
  });
}

// A query runs until the next page comes. Meanwhile its time is shown, and it can be cancelled.

const query = document.querySelector("[data-query]");

if (query) {
  const status = query.querySelector("[data-run-status]");
  const cancel = query.querySelector("[data-cancel]");
  let ticking = 0;

  const begin = () => {
    const begun = Date.now();
    cancel.hidden = false;
    status.textContent = "Running.";
    clearInterval(ticking);
    ticking = setInterval(() => {
      status.textContent = `Running for ${Math.round((Date.now() - begun) / 1000)} s.`;
    }, 1000);
  };
  const end = (text) => {
    clearInterval(ticking);
    cancel.hidden = true;
    status.textContent = text;
  };
  const send = (button) => fetch(button.formAction, {
    method: "POST", body: new URLSearchParams(new FormData(query, button)),
  });

  const keep = async (answer) => {
    const name = /filename="([^"]+)"/.exec(answer.headers.get("Content-Disposition") || "");
    if (!name) {
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      return page.querySelector(".message").textContent;
    }
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await answer.blob());
    link.download = name[1];
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    return `Saved as ${name[1]}.`;
  };

  end(status.textContent);
  window.addEventListener("pageshow", (event) => { if (event.persisted) end(""); });
  query.addEventListener("submit", (event) => {
    const button = event.submitter;
    if (button === cancel) {
      event.preventDefault();
      send(cancel).catch(() => {}); // the answer of the query says so
      return;
    }
    begin();
    if (button && button.name === "format") {
      event.preventDefault();
      send(button).then(keep).then(end, () => end("The server does not answer."));
    }
  });
}
