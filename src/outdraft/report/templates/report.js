"use strict";
(() => {
  const GAP = 8;
  let open = null;
  let pinned = false;

  const tipOf = (step) => document.getElementById(step.dataset.tip);
  const barsOf = (step) => document.querySelectorAll(`rect[data-step="${step.dataset.tip}"]`);

  function mark(step, isOpen) {
    step.classList.toggle("open", isOpen);
    step.setAttribute("aria-expanded", String(isOpen));
    tipOf(step).classList.toggle("open", isOpen);
    for (const bar of barsOf(step)) bar.classList.toggle("open", isOpen);
  }

  function hide() {
    if (open) mark(open, false);
    open = null;
    pinned = false;
  }

  function show(step) {
    if (open === step) return;
    hide();
    open = step;
    mark(step, true);
    place(step, tipOf(step));
  }

  /* Below the step's last line, or above its first where there is more room. */
  function place(step, tip) {
    const lines = step.getClientRects();
    const first = lines[0], last = lines[lines.length - 1];
    const { width, height } = tip.getBoundingClientRect();
    const room = document.documentElement;
    const below = last.bottom + GAP;
    const fits = below + height <= room.clientHeight || last.bottom < room.clientHeight - first.top;
    const top = fits ? below : first.top - GAP - height;
    const left = Math.min(last.left, room.clientWidth - width - GAP);
    tip.style.top = `${Math.max(GAP, Math.min(top, room.clientHeight - height - GAP))}px`;
    tip.style.left = `${Math.max(GAP, left)}px`;
  }

  const within = (target) => target instanceof Element && target.closest(".step, .tip.open");

  for (const step of document.querySelectorAll(".step")) {
    step.addEventListener("pointerenter", (event) => {
      if (event.pointerType === "mouse" && !pinned) show(step);
    });
    step.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse" && !pinned && !within(event.relatedTarget)) hide();
    });
    step.addEventListener("focus", () => { if (step.matches(":focus-visible")) show(step); });
    step.addEventListener("blur", (event) => { if (!within(event.relatedTarget)) hide(); });
    step.addEventListener("click", () => {
      if (open === step && pinned) return hide();
      show(step);
      pinned = true;
    });
    step.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      if (open === step) hide(); else show(step);
    });
  }
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  document.addEventListener("click", (event) => { if (!within(event.target)) hide(); });
  for (const change of ["scroll", "resize"]) {
    addEventListener(change, () => { if (open) place(open, tipOf(open)); }, { passive: true });
  }
  addEventListener("beforeprint", () => {
    hide();
    for (const part of document.querySelectorAll("details")) part.open = true;
  });
})();
