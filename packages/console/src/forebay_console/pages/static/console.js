// Keeps an open page live: asks the server for the same page again, and replaces the parts that have
// changed. Pages work without it.
"use strict";

const every = Number(document.body.dataset.refresh);
const longest = 30_000;
const live = document.getElementById("live");
const text = document.getElementById("live-text");
const button = document.getElementById("pause");
const parts = new Map();
let tag = null;
let wait = every;
let timer = null;
let paused = sessionStorage.getItem("paused") === "yes";

function ago(time) {
  const seconds = Math.max(0, (Date.now() - Date.parse(time.dateTime)) / 1000);
  const from = Date.parse(time.dateTime) > Date.now();
  if (from) return `in ${span((Date.parse(time.dateTime) - Date.now()) / 1000)}`;
  return seconds < 2 ? "now" : `${span(seconds)} ago`;
}

function span(seconds) {
  const units = [[86400, "d"], [3600, "h"], [60, "min"]];
  for (const [size, name] of units) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${name}`;
  }
  return `${Math.floor(seconds)} s`;
}

function showTimes() {
  for (const time of document.querySelectorAll("time[data-ago]")) {
    time.title ||= time.textContent;
    const shown = ago(time);
    if (time.textContent !== shown) time.textContent = shown;
  }
}

function remember() {
  for (const part of document.querySelectorAll("[data-part]")) {
    parts.set(part.dataset.part, part.innerHTML);
  }
}

// A part that has the focus gets it back; regions keep how far they were scrolled, and details open.
function replace(part, html) {
  const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
  const scrolled = [...part.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  const open = [...part.querySelectorAll("details[open]")].map((one) => one.id);
  part.innerHTML = html;
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  part.querySelectorAll(".scroll").forEach((one, at) => { one.scrollLeft = scrolled[at] || 0; });
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

// Returns whether all parts are as in the page; a busy one stays as it is.
function update(page) {
  let whole = true;
  const found = new DOMParser().parseFromString(page, "text/html");
  for (const fresh of found.querySelectorAll("[data-part]")) {
    const name = fresh.dataset.part;
    const shown = document.querySelector(`[data-part="${CSS.escape(name)}"]`);
    if (!shown || fresh.innerHTML === parts.get(name)) continue;
    if (busy(shown)) {
      whole = false;
    } else {
      parts.set(name, fresh.innerHTML);
      replace(shown, fresh.innerHTML);
    }
  }
  showTimes();
  return whole;
}

// Text that is being selected or typed stays.
function busy(part) {
  const selection = document.getSelection();
  const selecting = !selection.isCollapsed && part.contains(selection.anchorNode);
  return selecting || part.contains(document.activeElement?.closest("form") ?? null);
}

async function ask() {
  timer = null;
  try {
    const headers = tag ? { "If-None-Match": tag } : {};
    const answer = await fetch(location.href, { headers, cache: "no-store", redirect: "error" });
    if (answer.status !== 304) {
      if (!answer.ok) throw new Error(`the console answered ${answer.status}`);
      tag = update(await answer.text()) ? answer.headers.get("ETag") : null;
    }
    wait = every;
    if (!paused) show("live", "");
  } catch (error) {
    wait = Math.max(every, Math.min(longest, wait * 2));
    if (!paused) show(`no answer since ${new Date().toLocaleTimeString()}`, "lost");
  }
  next();
}

function show(words, kind) {
  if (kind === "lost" && live.classList.contains("lost")) return;
  live.className = `live ${kind}`;
  if (text.textContent !== words) text.textContent = words;
}

function next() {
  clearTimeout(timer);
  timer = paused || document.hidden ? null : setTimeout(ask, wait);
}

function pause(now) {
  paused = now;
  sessionStorage.setItem("paused", now ? "yes" : "no");
  button.setAttribute("aria-pressed", String(now));
  show(now ? "paused" : "live", now ? "stopped" : "");
  next();
}

remember();
showTimes();
setInterval(showTimes, 1000);
if (every > 0) {
  live.hidden = false;
  button.addEventListener("click", () => pause(!paused));
  document.addEventListener("visibilitychange", () => {
    if (document.hidden || paused) next();
    else if (timer === null) ask();
  });
  pause(paused);
}
