/* What a page does beyond HTML: it asks for itself again when the server tells of a change, draws plots, and follows keys.
   What comes back is HTML of the same server, escaped there; it is parsed without running anything. */
"use strict";
(() => {
  const LEAST_MS = 400; // between two drawings
  const SHARE = 10; // and so many times as long as the last one took
  const $ = (id) => document.getElementById(id);
  let source = null, timer = 0, wanted = false, busy = false, last = 0, took = 0, failures = 0;

  function show(text, lost) {
    const link = $("link");
    if (link.textContent !== text) link.textContent = text;
    link.classList.toggle("lost", lost);
  }

  /* ---- drawing anew */

  function ask() {
    wanted = true;
    if (busy || timer || document.hidden) return;
    const wait = Math.max(0, last + Math.max(LEAST_MS, SHARE * took) - performance.now());
    timer = setTimeout(() => { timer = 0; draw(); }, wait);
  }

  async function draw() {
    const begun = performance.now();
    wanted = false;
    busy = true;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" }, redirect: "error" });
      if (answer.status >= 500) throw new Error(String(answer.status));
      replace(new DOMParser().parseFromString(await answer.text(), "text/html"));
      failures = 0;
      show("live", false);
    } catch {
      failures += 1;
      show("no connection: this may be old", true);
      setTimeout(ask, Math.min(1000 * 2 ** failures, 15000));
    }
    last = performance.now();
    took = last - begun;
    busy = false;
    if (wanted) ask();
  }

  function replace(page) {
    const next = page.getElementById("live"), live = $("live");
    if (!next || !live || next.innerHTML === live.dataset.was) return;
    const was = next.innerHTML;
    const keep = kept(live);
    live.replaceChildren(...next.childNodes);
    live.dataset.was = was;
    restore(live, keep);
    plot();
    follow(keep.ends);
  }

  /* What people have done to the page since it was drawn: focus, marks, places in long texts. */
  function kept(live) {
    const active = live.contains(document.activeElement) ? document.activeElement : null;
    return {
      focus: active && (active.id || active.getAttribute("href")),
      marked: [...live.querySelectorAll("input[type=checkbox]:checked")].map((box) => box.value),
      open: [...live.querySelectorAll("details[open][id]")].map((each) => each.id),
      sides: [...live.querySelectorAll(".wide")].map((each) => each.scrollLeft),
      ends: Object.fromEntries([...live.querySelectorAll("[data-follow]")].map((each) =>
        [each.id, each.scrollTop + each.clientHeight >= each.scrollHeight - 4 ? -1 : each.scrollTop])),
    };
  }

  function restore(live, keep) {
    for (const box of live.querySelectorAll("input[type=checkbox]")) box.checked = keep.marked.includes(box.value);
    for (const id of keep.open) if ($(id)) $(id).open = true;
    live.querySelectorAll(".wide").forEach((each, n) => { each.scrollLeft = keep.sides[n] || 0; });
    if (keep.focus) {
      const again = $(keep.focus) || [...live.querySelectorAll("a[href]")].find((a) => a.getAttribute("href") === keep.focus);
      if (again) again.focus({ preventScroll: true });
    }
  }

  function follow(ends) {
    for (const each of document.querySelectorAll("[data-follow]")) {
      const place = ends[each.id];
      each.scrollTop = place === undefined || place < 0 ? each.scrollHeight : place;
    }
  }

  /* ---- being told. A page that nobody sees holds no connection: a browser has but six for a server. */

  function listen() {
    if (!("live" in document.body.dataset)) return;
    const job = document.body.dataset.job;
    const close = () => { if (source) source.close(); source = null; };
    const open = () => {
      close();
      source = new EventSource("/changes" + (job ? "?job=" + job : ""));
      source.addEventListener("begin", () => { show("live", false); if (last) ask(); });
      source.addEventListener("change", ask);
      source.addEventListener("error", () => show("no connection: this may be old", true));
    };
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) { close(); return; }
      open();
      ask();
    });
    window.addEventListener("pagehide", close);
    window.addEventListener("pageshow", (event) => { if (event.persisted) { open(); ask(); } });
    if (!document.hidden) open();
    (function tick() {
      const seconds = Number($("live").dataset.poll || 0);
      if (seconds && performance.now() - last >= seconds * 900) ask();
      setTimeout(tick, (seconds || 5) * 1000);
    })();
    last = performance.now();
  }

  /* ---- plots */

  let drawn = [];

  function plot() {
    drawn.forEach((each) => each.destroy());
    drawn = [];
    if (!window.uPlot) return;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const clock = (offset) => (_plot, times) => times.map((time) => new Date((time + offset) * 1000).toISOString().slice(11, 16));
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
    for (const each of document.querySelectorAll("[data-plot]")) {
      const labels = JSON.parse(each.dataset.labels);
      const lines = labels.map((label, n) => ({ label, stroke: colour(n ? "--plot-2" : "--plot-1"), dash: n ? [6, 4] : [], width: 2, spanGaps: true, points: { size: 4 } }));
      each.replaceChildren();
      drawn.push(new uPlot({
        width: each.clientWidth, height: each.clientHeight, series: [{ label: "time" }, ...lines], legend: { live: false },
        axes: [{ ...axis, values: clock(Number(each.dataset.offset)) }, { ...axis, size: 56, values: (_plot, values) => values.map((value) => value + (each.dataset.unit === "s" ? " s" : "")) }],
        scales: { y: { range: (_plot, _least, most) => [0, most > 0 ? most * 1.1 : 1] } }, cursor: { show: false },
      }, JSON.parse(each.dataset.plot), each));
    }
  }

  /* ---- keys */

  function row(step) {
    const rows = [...document.querySelectorAll("a.row")];
    const at = rows.indexOf(document.activeElement);
    const next = rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : at + step];
    if (next) next.focus();
  }

  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest && event.target.closest("input, select, textarea");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const search = document.querySelector("input[type=search]");
    if (event.key === "/" && search) { event.preventDefault(); search.focus(); }
    if (event.key === "/" && !search) { event.preventDefault(); location.href = "/jobs"; }
    if (event.key === "j") row(1);
    if (event.key === "k") row(-1);
  });

  /* ---- forms */

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-confirm]");
    if (button && !window.confirm(button.dataset.confirm)) event.preventDefault();
    if (event.target.matches("[data-all]"))
      for (const box of document.querySelectorAll("input[form=marked]")) box.checked = event.target.checked;
  });

  document.addEventListener("submit", (event) => { // a second click would queue a second job
    const form = event.target.closest("form[data-once]");
    if (form && form.dataset.once) event.preventDefault();
    else if (form) form.dataset.once = "sent";
  });

  /* ---- the link with the key: what stands behind # is sent to no server, and is taken out of the history */

  function signIn() {
    const form = $("key-form"), key = decodeURIComponent(location.hash.slice(1));
    if (!form || !key) return;
    history.replaceState(null, "", location.pathname);
    form.elements.password.value = key;
    form.submit();
  }

  let resized = 0;
  window.addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(plot, 150); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", plot);
  window.addEventListener("hashchange", signIn); // the link was pasted into this tab: the page is not loaded anew
  signIn();
  plot();
  follow({});
  listen();
})();
