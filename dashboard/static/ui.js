// What the pages do beyond links and forms: parts that refresh, keys, and buttons that copy. All of it can be missing.
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);

  // Parts that refresh: htmx asks every few seconds, unless somebody paused it, or nobody looks.
  const toggle = byId("live-toggle");
  const word = byId("live-word");
  let paused = false;
  let failed = false;
  try { paused = sessionStorage.getItem("paused") === "yes"; } catch { /* no storage: live until the page is left */ }

  function show() {
    if (!toggle) return;
    toggle.hidden = !document.querySelector("[data-live]");
    toggle.setAttribute("aria-pressed", String(paused));
    toggle.title = paused ? "Refresh again" : "Stop refreshing";
    toggle.dataset.state = paused ? "paused" : failed ? "failed" : "live";
    word.textContent = paused ? "Paused" : failed ? "No answer" : "Live";
  }

  toggle?.addEventListener("click", () => {
    paused = !paused;
    try { sessionStorage.setItem("paused", paused ? "yes" : "no"); } catch { /* as above */ }
    show();
  });
  document.addEventListener("htmx:before:request", (event) => {
    const part = event.target.closest?.("[data-live]");
    // What is being selected or read by keyboard in a menu is left alone, too.
    if (part && (paused || document.hidden || String(getSelection()) !== "")) event.preventDefault();
  });
  document.addEventListener("htmx:after:request", (event) => {
    failed = (event.detail.ctx?.response?.status ?? 0) >= 400;
    show();
  });
  document.addEventListener("htmx:error", () => { failed = true; show(); });
  document.addEventListener("htmx:after:swap", () => { mark(); reveal(); show(); });

  // Keys: / to the search, j and k from row to row, Enter into it.
  let chosen = null;

  function rows() { return [...document.querySelectorAll("table.rows tbody tr, .fall summary")]; }

  function mark() {
    for (const row of document.querySelectorAll(".chosen")) row.classList.remove("chosen");
    const row = chosen && byId(chosen);
    row?.classList.add("chosen");
  }

  function move(step) {
    const all = rows();
    if (!all.length) return;
    const id = (row) => (row.id ||= row.parentElement.id ? `${row.parentElement.id}-row` : `row-${all.indexOf(row)}`);
    const place = all.findIndex((row) => id(row) === chosen);
    const row = all[Math.min(Math.max(place + step, 0), all.length - 1)];
    chosen = id(row);
    mark();
    row.scrollIntoView({ block: "nearest" });
    (row.querySelector("a.go") ?? row).focus?.({ preventScroll: true });
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.closest?.("input, select, textarea");
    if (event.key === "Escape" && typing) typing.blur();
    if (typing) return;
    if (event.key === "/") { event.preventDefault(); byId("search")?.focus(); }
    if (event.key === "j") move(1);
    if (event.key === "k") move(-1);
    if (event.key === "p") toggle?.click();
  });

  // A row is as good as its link.
  document.addEventListener("click", (event) => {
    if (event.target.closest("a, button, summary, details, input, label") || String(getSelection()) !== "") return;
    event.target.closest("table.rows tr")?.querySelector("a.go")?.click();
  });

  // Copying works without HTTPS too, by the old way.
  function reveal() { for (const button of document.querySelectorAll(".copy")) button.hidden = false; }

  async function copy(text) {
    if (navigator.clipboard) {
      try { return await navigator.clipboard.writeText(text); } catch { /* not allowed: by the old way */ }
    }
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "sr";
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest(".copy");
    if (!button) return;
    await copy(button.dataset.copy);
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });

  reveal();
  show();
})();
