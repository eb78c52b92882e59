"use strict";
// The live page: takes the server's events and shows them. What is drawn as SVG comes from the server as such.

const by = (id) => document.getElementById(id);
const requests = (count) => (count === 1 ? "1 request" : `${count.toLocaleString("en")} requests`);
const state = { after: 0, source: null, opened: null, ended: false, figures: null, sent: null };

const list = new RequestList(by("grid"), by("rows"), openRequest);

function range() {
  const last = by("last").value;
  if (last !== "custom") return { last: Number(last), since: Number(last) ? Date.now() - last * 1000 : 0, until: Infinity };
  const [since, until] = ["since", "until"].map((id) => (by(id).value ? new Date(by(id).value).getTime() : null));
  return { last: null, since: since ?? 0, until: until ?? Infinity };
}

function connect() {
  state.source?.close();
  const chosen = range(), query = new URLSearchParams({ after: state.after, left: state.left ?? 0 });
  if (chosen.last !== null) query.set("last", chosen.last);
  else {
    query.set("since", chosen.since / 1000);
    if (Number.isFinite(chosen.until)) query.set("until", chosen.until / 1000);
  }
  const source = state.source = new EventSource(`events?${query}`);
  source.onopen = () => status("connected");
  source.onerror = () => { source.close(); if (!state.ended) { status("disconnected"); setTimeout(connect, 2000); } };
  source.addEventListener("rows", (event) => take(JSON.parse(event.data)));
  source.addEventListener("now", (event) => now(JSON.parse(event.data)));
  source.addEventListener("ended", (event) => { state.ended = true; source.close(); status(event.data); });
}

function status(text) { if (by("status").textContent !== text) by("status").textContent = text; }

function take(data) {
  list.add(data.rows);
  list.drop(data.gone);
  if (data.rows.length) state.after = data.rows[data.rows.length - 1][AT.number];
  state.left = data.left;
  const open = state.opened && data.rows.find((row) => row[AT.span] === state.opened.span);
  if (open) load(open);
}

function now(data) {
  state.figures = data.figures;
  list.running = data.running;
  status(data.status);
  inFlight(data);
  tiles(data.figures);
  if (data.chart !== null) by("chart").innerHTML = data.chart;
  wrong(data);
  by("kept").textContent = `${requests(data.kept)} kept` + (data.left_count ? `; ${data.left_count.toLocaleString("en")} older ones have left` : "");
  options("model");
  options("tenant");
  choose();
  if (state.opened?.running) reloadRunning();
}

function choose() {
  const slow = state.figures?.latency.e2e.p95 ?? null;
  list.choose({ show: by("show").value, sort: by("sort").value, model: by("model").value, tenant: by("tenant").value,
    text: by("text").value, slow: slow === null ? null : slow * 1000, ...range() });
  const shown = list.found.length;
  by("shown").textContent = requests(shown);
  by("empty").hidden = shown > 0;
}

function options(id) {
  const select = by(id), values = list.values(id);
  if (values.join("\n") === select.dataset.values) return;
  select.dataset.values = values.join("\n");
  const chosen = select.value;
  select.replaceChildren(element("option", { value: "" }, `any ${id}`), ...values.map((value) => element("option", { value }, value)));
  select.value = values.includes(chosen) ? chosen : "";
  select.closest("label").hidden = values.length < 2 && !select.value;
}

function inFlight(data) {
  const stages = Object.entries(data.in_flight ?? {}).filter(([stage, count]) => count || STAGES.includes(stage));
  const most = Math.max(1, ...stages.map(([, count]) => count)), total = stages.reduce((sum, [, count]) => sum + count, 0);
  by("total").textContent = data.in_flight === null ? "-" : total;
  by("oldest").textContent = data.in_flight === null ? "no metrics yet" : total && data.oldest !== null ? `oldest ${duration(data.oldest * 1000)}` : "none waits";
  const box = by("stages");
  if (box.children.length !== stages.length) box.replaceChildren(...stages.map(() => element("li", {}, element("span"), element("span", { class: "track" }, element("i")), element("b"))));
  stages.forEach(([stage, count], index) => {
    const [name, track, figure] = box.children[index].children;
    name.textContent = stage;
    figure.textContent = count;
    track.firstChild.className = `s-${STAGES.includes(stage) ? stage : "other"}`;
    track.firstChild.style.width = `${(100 * count) / most}%`;
  });
}

const percent = (value) => (value === null || value === undefined ? "-" : `${(value * 100).toFixed(1)} %`);
const number = (value) => (value === null ? "-" : value >= 100 ? Math.round(value).toLocaleString("en") : value.toPrecision(3));

function tiles(figures) {
  by("rate").textContent = figures.rate === null ? "-" : `${number(figures.rate)} /s`;
  by("success").textContent = percent(figures.success);
  by("ended").textContent = `${figures.total.toLocaleString("en")} ended`;
  for (const name of ["ttft", "tpot", "e2e"]) {
    const { count, p50, p95 } = figures.latency[name];
    by(name).textContent = p50 === null ? "-" : pair(duration(p50 * 1000), duration(p95 * 1000));
    by(`${name}-count`).textContent = `p50 / p95 of ${count.toLocaleString("en")}`;
  }
  parts("bottlenecks", figures.bottlenecks, null, "completed requests");
  parts("queue-by", figures.queue, "s", requests(figures.queue_of));
  parts("stall-by", figures.stall, "s", requests(figures.stall_of));
  const lost = figures.stall === null ? 0 : Object.values(figures.stall).reduce((sum, value) => sum + value, 0);
  by("stalled").textContent = figures.stall === null || !figures.decode ? "" : `${percent(lost / figures.decode)} of decode time`;
}

// Two durations, with the unit once where it is the same.
function pair(one, other) {
  const [value, unit] = one.split(" ");
  return other.endsWith(` ${unit}`) ? `${value} / ${other}` : `${one} / ${other}`;
}

// A list of shares, each with its amount; `what` they are shares of.
function parts(id, amounts, unit, what) {
  const box = by(id), entries = Object.entries(amounts ?? {}).filter(([, value]) => value > 0).sort((a, b) => b[1] - a[1]);
  const total = entries.reduce((sum, [, value]) => sum + value, 0);
  const words = entries.map(([name, value]) => [name, percent(value / total), unit ? duration(value * 1000) : value.toLocaleString("en")]);
  const key = JSON.stringify(words) + what;
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  if (!entries.length) return box.replaceChildren(element("li", { class: "none" }, amounts === null ? "these requests do not have it" : "none"));
  box.replaceChildren(...words.map(([name, share, amount]) => element("li", {}, element("i", { class: `s-${STAGES.includes(name) || name === "mixed" ? name : "other"}`, "aria-hidden": "true" }), `${name} `, element("b", {}, share), element("small", {}, ` ${amount}`))),
    element("li", { class: "of" }, `of ${unit ? duration(total * 1000) : total.toLocaleString("en")}, ${what}`));
}

function wrong(data) {
  const key = JSON.stringify([data.figures.rules, data.unread]);
  if (by("wrong").dataset.key === key) return;
  by("wrong").dataset.key = key;
  const rules = data.figures.rules.map((one) => {
    const item = element("li", { class: "bad" }, element("b", {}, one.kind.replaceAll("_", " ")), ` ${one.count} in ${one.requests} request${one.requests === 1 ? "" : "s"}: `, [one.event && `event ${one.event}`, one.state && `in ${one.state}`].filter(Boolean).join(" "), element("div", { class: "rule" }, one.rule));
    const button = element("button", { type: "button" }, "show the newest");
    button.addEventListener("click", () => { const row = list.rows.get(one.number); if (row) openRequest(row); });
    item.append(button);
    return item;
  });
  const unread = data.unread.map((one) => element("li", { class: one.remedy ? "bad" : "" }, element("b", {}, `${one.count.toLocaleString("en")} ${one.what}`), `: ${one.reason}`, element("div", { class: "rule" }, one.remedy)));
  by("wrong").replaceChildren(...rules, ...unread, ...(rules.length + unread.length ? [] : [element("li", { class: "none" }, "nothing found")]));
}

function openRequest(row) {
  state.opened = { trace: row[AT.trace], span: row[AT.span], running: row[AT.outcome] === "running" };
  by("request").showModal();
  load(row);
}

async function load(row) {
  const trace = row[AT.trace], span = row[AT.span];
  state.opened = { trace, span, running: row[AT.outcome] === "running" };
  const answer = await fetch(`request/${trace}/${span}`).catch(() => null);
  if (state.opened?.span !== span) return;
  by("detail").innerHTML = answer?.ok ? await answer.text() : "<h2>Not there any more</h2><p>The request has left the memory, or the server has stopped.</p>";
  by("detail").querySelector("h2").id = "detail-title";
}

function reloadRunning() {
  const row = list.running.find((one) => one[AT.span] === state.opened.span);
  if (row) load(row);
}

by("request").addEventListener("close", () => { state.opened = null; });
by("request").addEventListener("click", (event) => { if (event.target === by("request")) by("request").close(); });
by("close").addEventListener("click", () => by("request").close());
by("detail").addEventListener("click", (event) => {
  const link = event.target.closest("[data-request]");
  if (!link) return;
  event.preventDefault();
  const [trace, span] = link.dataset.request.split("/");
  const row = [...list.rows.values()].find((one) => one[AT.trace] === trace && one[AT.span] === span);
  if (row) openRequestAgain(row);
});
function openRequestAgain(row) { load(row); by("detail").scrollTop = 0; }

for (const id of ["show", "sort", "model", "tenant"]) by(id).addEventListener("change", () => { list.grid.scrollTop = 0; choose(); });
by("text").addEventListener("input", choose);
for (const id of ["last", "since", "until"]) by(id).addEventListener("change", () => {
  by("custom").hidden = by("last").value !== "custom";
  connect();
  choose();
});
for (const [id, values] of [["show", SHOWS], ["sort", SORTS]]) by(id).append(...Object.keys(values).map((name) => element("option", {}, name)));
connect();
