"use strict";
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
const arrows = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, Home: -Infinity, End: Infinity };

// The call to copy. Without permission for the clipboard it is selected, ready for the keyboard.
document.addEventListener("click", async ({ target }) => {
  if (!target.matches(".copy")) return;
  const code = target.previousElementSibling;
  getSelection().selectAllChildren(code);
  let copied = false;
  try { await navigator.clipboard.writeText(code.textContent); copied = true; }
  catch { copied = document.execCommand("copy"); }
  target.textContent = copied ? "Copied" : "Selected";
  setTimeout(() => { target.textContent = "Copy"; }, 1600);
});

// A row of the table as a card: the heads of the columns become its words.
const element = (name, ...children) => { const made = document.createElement(name); made.append(...children); return made; };
const inside = (cell) => [...cell.cloneNode(true).childNodes];
function card(row) {
  const heads = all("thead th", row.closest("table")), [first, ...cells] = row.cells, [name, quiet, call] = first.children;
  const figures = cells.map((cell, index) => [heads[index + 1].textContent, cell]).filter(([, cell]) => cell.textContent.trim());
  const list = element("dl", ...figures.map(([word, cell]) =>
    element("div", element("dt", word), element("dd", ...inside(cell)))));
  return [element("h3", ...inside(name)), quiet.cloneNode(true), list, call.cloneNode(true)];
}

// The plot: pointing at a dot explains it, pressing it keeps it, the arrow keys go from dot to dot.
for (const explained of all(".explained")) {
  const plot = explained.querySelector(".plot"), dots = all(".dot", plot), shown = explained.querySelector(".chosen-row");
  if (!dots.length) continue;
  let chosen = null, pinned = false;
  const choose = (dot, pin) => {
    if (dot !== chosen) shown.replaceChildren(...card(document.getElementById(dot.dataset.row)));
    [chosen, pinned] = [dot, pin];
    for (const other of dots) {
      const here = other === dot;
      other.classList.toggle("chosen", here);
      other.classList.toggle("pinned", here && pin);
      other.setAttribute("aria-pressed", here && pin);
      other.tabIndex = here ? 0 : -1;
    }
    for (const line of all(".join", plot)) line.classList.toggle("of", line.dataset.method === dot.dataset.method);
  };
  const nearest = (event) => {
    let found = null, least = 32;
    for (const dot of dots) {
      const box = dot.querySelector("path").getBoundingClientRect();
      const far = Math.hypot(event.clientX - box.x - box.width / 2, event.clientY - box.y - box.height / 2);
      if (far <= least) [found, least] = [dot, far];
    }
    return found;
  };
  plot.addEventListener("pointermove", (event) => {
    const dot = !pinned && event.pointerType !== "touch" && nearest(event);
    if (dot && dot !== chosen) choose(dot, false);
  });
  plot.addEventListener("click", (event) => {
    const dot = nearest(event);
    choose(dot || chosen, Boolean(dot) && !(pinned && dot === chosen));
  });
  plot.addEventListener("keydown", (event) => {
    if (event.key in arrows) {
      const next = dots[clamp(dots.indexOf(chosen) + arrows[event.key], 0, dots.length - 1)];
      choose(next, true);
      next.focus();
    } else if (event.key === "Enter" || event.key === " ") choose(chosen, !pinned);
    else if (event.key === "Escape") choose(chosen, false);
    else return;
    event.preventDefault();
  });
  choose(dots.find((dot) => dot.dataset.row === explained.dataset.chosen) || dots[0], false);
}
