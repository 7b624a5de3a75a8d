"use strict";
/* Goes from slide to slide by keys; the address names the slide that is shown. */
const slides = [...document.querySelectorAll("main > section")];
const where = document.getElementById("where");

/* The slide whose top is nearest to the window's. */
function shown() {
  const far = slides.map((slide) => Math.abs(slide.getBoundingClientRect().top));
  return far.indexOf(Math.min(...far));
}

function go(number) {
  const slide = slides[Math.max(0, Math.min(slides.length - 1, number))];
  slide.scrollIntoView({ behavior: "instant" });
  tell();
}

function tell() {
  const number = shown() + 1, said = `${number} / ${slides.length}`;
  if (where.textContent === said) return;
  where.textContent = said;
  history.replaceState(null, "", `#${number}`);
}

const keys = {
  ArrowRight: 1, ArrowDown: 1, PageDown: 1, " ": 1, ArrowLeft: -1, ArrowUp: -1, PageUp: -1, Home: -Infinity, End: Infinity,
};
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("summary, a, pre:focus")) return;
  if (!(event.key in keys)) return;
  event.preventDefault();
  go(Number.isFinite(keys[event.key]) ? shown() + keys[event.key] : keys[event.key] > 0 ? slides.length - 1 : 0);
});
addEventListener("scroll", tell, { passive: true });
