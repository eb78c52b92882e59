"use strict";
// Explains the marks of charts: on hover, by touch, and with the arrow keys once a chart has the focus.
(() => {
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "status");
  document.body.append(tip);

  let chosen = null;
  const hide = () => {
    tip.hidden = true;
    chosen?.classList.remove("on");
    chosen = null;
  };

  const show = (mark, x, y) => {
    tip.textContent = mark.dataset.tip;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - box.width - 4))}px`;
    tip.style.top = `${y + 18 + box.height > innerHeight ? y - box.height - 12 : y + 18}px`;
  };

  document.addEventListener("pointermove", (event) => {
    const mark = event.target.closest?.("[data-tip]");
    if (mark) show(mark, event.clientX, event.clientY);
    else if (!chosen) tip.hidden = true;
  });
  document.addEventListener("scroll", hide, { passive: true });

  const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const chart = event.target.closest?.(".chart > svg");
    if (!chart || !(event.key in STEPS)) return;
    const marks = [...chart.querySelectorAll("[data-tip]")];
    if (!marks.length) return;
    event.preventDefault();
    const at = marks.indexOf(chosen);
    const next = at < 0 ? (STEPS[event.key] > 0 ? 0 : marks.length - 1) : (at + STEPS[event.key] + marks.length) % marks.length;
    chosen?.classList.remove("on");
    chosen = marks[next];
    chosen.classList.add("on");
    const box = chosen.getBoundingClientRect();
    show(chosen, box.left + box.width / 2, Math.min(box.bottom, innerHeight - 60));
  });
  document.addEventListener("focusout", hide);

  // A link to something folded opens it.
  const unfold = () => {
    const target = location.hash.length > 1 ? document.getElementById(location.hash.slice(1)) : null;
    if (target?.tagName === "DETAILS") target.open = true;
  };
  addEventListener("hashchange", unfold);
  unfold();
})();
