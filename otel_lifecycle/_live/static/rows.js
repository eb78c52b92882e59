"use strict";
// The list of requests: ten thousand rows, of which only the visible ones are elements.

const FIELDS = ["number", "trace", "span", "id", "name", "model", "tenant", "arrived", "length", "outcome", "bottleneck",
  "stages", "ttft", "tpot", "input", "output", "illegal", "stall", "cause"];
const AT = Object.fromEntries(FIELDS.map((name, index) => [name, index]));
const STAGES = ["queue", "preprocessing", "prefill", "decode", "other"];

function duration(ms) {
  if (ms === null || ms === undefined) return "-";
  const [value, unit] = ms >= 1000 ? [ms / 1000, "s"] : ms >= 1 ? [ms, "ms"] : [ms * 1000, "µs"];
  const text = value >= 100 ? Math.round(value).toLocaleString("en") : value >= 10 ? value.toFixed(1) : value.toFixed(2);
  return ms === 0 ? "0 s" : `${text} ${unit}`;
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const SORTS = {
  newest: null, // rows are kept in the order they ended
  "longest E2E": (row) => row[AT.length],
  "longest TTFT": (row) => row[AT.ttft] ?? -1,
  "longest TPOT": (row) => row[AT.tpot] ?? -1,
  "longest queue": (row) => row[AT.stages][0] ?? -1,
  "most stalled": (row) => row[AT.stall] ?? -1,
};

const SHOWS = {
  "all requests": () => true,
  slow: (row, slow) => slow !== null && row[AT.length] >= slow,
  mixed: (row) => row[AT.bottleneck] === "mixed",
  failed: (row) => row[AT.outcome] === "failed" || row[AT.outcome] === "timed_out",
  "not completed": (row) => row[AT.outcome] !== "completed",
  illegal: (row) => row[AT.illegal] === 1,
  stalled: (row) => row[AT.stall] > 0,
};

const WRITTEN_A_FRAME = 12;

class RequestList {
  // `open(row)` shows one request; `grid` scrolls and holds `body`, whose height is that of all rows.
  constructor(grid, body, open) {
    this.grid = grid;
    this.body = body;
    this.open = open;
    this.rows = new Map();
    this.running = [];
    this.found = [];
    this.pool = [];
    this.current = 0;
    this.asked = false;
    grid.addEventListener("scroll", () => this.draw(), { passive: true });
    grid.addEventListener("keydown", (event) => this.key(event));
    addEventListener("resize", () => this.draw());
  }

  add(rows) { for (const row of rows) this.rows.set(row[AT.number], row); }

  drop(numbers) { for (const number of numbers) this.rows.delete(number); }

  // Filters and sorts; `choice` has show, sort, model, tenant, text, slow (ms or null), since and until (epoch ms).
  choose(choice) {
    const show = SHOWS[choice.show], text = choice.text.trim().toLowerCase();
    const found = [];
    for (const row of this.rows.values()) {
      const ended = row[AT.arrived] + row[AT.length];
      if (ended <= choice.since || ended > choice.until) continue;
      if (!show(row, choice.slow)) continue;
      if (choice.model && row[AT.model] !== choice.model) continue;
      if (choice.tenant && row[AT.tenant] !== choice.tenant) continue;
      if (text && !this.matches(row, text)) continue;
      found.push(row);
    }
    const key = SORTS[choice.sort];
    if (key) found.sort((a, b) => key(b) - key(a));
    else found.reverse();
    const running = choice.show === "all requests" && !choice.model && !choice.tenant
      ? this.running.filter((row) => !text || this.matches(row, text)) : [];
    this.found = running.concat(found);
    this.scale = Math.max(choice.slow ?? 0, 1);
    this.current = Math.min(this.current, Math.max(this.found.length - 1, 0));
    this.draw();
  }

  matches(row, text) {
    return row[AT.trace].startsWith(text) || row[AT.span].startsWith(text) || (row[AT.id]?.toLowerCase().includes(text) ?? false);
  }

  values(field) {
    const seen = new Set();
    for (const row of this.rows.values()) {
      if (row[AT[field]] !== null) seen.add(row[AT[field]]);
      if (seen.size > 100) break;
    }
    return [...seen].sort();
  }

  // Draws in the next frame, however often it is asked for in this one.
  draw() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => { this.asked = false; this.paint(); });
  }

  rowHeight() { return innerWidth <= 760 ? 58 : 34; }

  paint() {
    const height = this.rowHeight(), total = this.found.length;
    this.body.style.height = `${height * total}px`;
    this.grid.setAttribute("aria-rowcount", total + 1);
    const first = Math.max(0, Math.floor(this.grid.scrollTop / height) - 4);
    const last = Math.min(total, Math.ceil((this.grid.scrollTop + this.grid.clientHeight) / height) + 4);
    while (this.pool.length < last - first) this.pool.push(this.made());
    // Each element keeps its place modulo their number, so that scrolling by a row writes one row. A screen full of new
    // rows takes several frames: written in one, it would hold the main thread too long.
    const size = this.pool.length, places = Array.from({ length: size }, (_, index) => first + index);
    places.sort((a, b) => (b === this.current) - (a === this.current));
    let left = WRITTEN_A_FRAME;
    for (const at of places) {
      const line = this.pool[at % size];
      if (line.hidden !== at >= total) line.hidden = at >= total;
      if (line.hidden || this.shows(line, at, height)) continue;
      if (left-- > 0) this.fill(line, this.found[at], at, height);
    }
    if (left < 0) this.draw();
  }

  made() {
    const cells = ["time", "request", "outcome", "bottleneck", "bar", "ttft", "tpot", "e2e", "tokens"];
    const line = element("div", { role: "row", class: "row" }, ...cells.map((name) => element("span", { role: "gridcell", class: name })));
    line.cells = Object.fromEntries(cells.map((name, index) => [name, line.children[index]]));
    line.parts = STAGES.map((stage) => element("i", { class: `s-${stage}` }));
    line.cells.bar.append(element("span", { class: "track", "aria-hidden": "true" }, ...line.parts));
    line.addEventListener("click", () => { this.current = line.at; this.open(line.row); this.draw(); });
    this.body.append(line);
    return line;
  }

  shows(line, at, high) {
    return line.row === this.found[at] && line.at === at && line.tabIndex === (at === this.current ? 0 : -1)
      && line.scale === this.scale && line.high === high;
  }

  fill(line, row, at, high) {
    Object.assign(line, { row, at, high, tabIndex: at === this.current ? 0 : -1, scale: this.scale });
    line.style.top = `${at * high}px`;
    line.style.height = `${high}px`;
    const name = row[AT.id] ?? row[AT.trace].slice(0, 12), cells = line.cells;
    line.setAttribute("aria-rowindex", at + 2);
    line.setAttribute("aria-label", `${row[AT.outcome]} request ${name}, ${row[AT.bottleneck] ?? "no bottleneck named"}, ${duration(row[AT.length])}`);
    cells.time.textContent = new Date(row[AT.arrived]).toTimeString().slice(0, 8);
    cells.request.textContent = row[AT.model] ? `${name}  ${row[AT.model]}` : name;
    cells.request.title = [row[AT.name], row[AT.tenant]].filter(Boolean).join(", ");
    cells.outcome.textContent = row[AT.illegal] ? `${row[AT.outcome]}, illegal` : row[AT.outcome].replace("_", " ");
    cells.outcome.className = `outcome o-${row[AT.outcome]}`;
    cells.bottleneck.textContent = row[AT.cause] ? `${row[AT.bottleneck]} (${row[AT.cause]})` : row[AT.bottleneck] ?? "-";
    cells.ttft.textContent = duration(row[AT.ttft]);
    cells.tpot.textContent = duration(row[AT.tpot]);
    cells.e2e.textContent = duration(row[AT.length]);
    cells.tokens.textContent = `${row[AT.input] ?? "-"} / ${row[AT.output] ?? "-"}`;
    // The bars of all rows have one scale; what is longer than it fills the track.
    const factor = 100 / Math.max(this.scale, row[AT.length], 0.001);
    line.parts.forEach((part, index) => { part.style.width = `${(row[AT.stages][index] ?? 0) * factor}%`; });
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.grid.clientHeight / this.rowHeight()) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key === "Enter" && this.found[this.current]) { event.preventDefault(); this.open(this.found[this.current]); }
    if (!(event.key in steps) || !this.found.length) return;
    event.preventDefault();
    this.current = Math.min(Math.max(this.current + steps[event.key], 0), this.found.length - 1);
    this.show(this.current);
  }

  show(at) {
    const height = this.rowHeight(), top = at * height, view = this.grid.clientHeight - height;
    if (top < this.grid.scrollTop) this.grid.scrollTop = top;
    if (top + height > this.grid.scrollTop + view) this.grid.scrollTop = top + height - view;
    this.paint();
    this.pool.find((line) => !line.hidden && line.at === at)?.focus({ preventScroll: true });
  }
}
