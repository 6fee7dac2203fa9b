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

// The first screen repeats pictures of the first prompt; the page holds each once.
for (const figure of all(".front figure")) {
  const same = all("article:not(.front) figure").find((other) => other.dataset.name === figure.dataset.name);
  figure.querySelector("img").src = same.querySelector("img").src;
}

// Full against reuse, prompt by prompt: the pictures below the stage choose what stands on its right.
for (const article of all("article")) {
  const stage = article.querySelector(".stage"), figures = all("figure", article);
  const [left, right] = all("img", stage), slide = stage.querySelector("input");
  const show = (figure) => {
    const picture = figure.querySelector("img");
    right.src = picture.src;
    right.alt = picture.alt;
    stage.querySelector(".right").textContent = figure.dataset.name;
    if (slide) slide.setAttribute("aria-label", `${figures[0].dataset.name} on the left, ${figure.dataset.name} on the right`);
    for (const other of figures) other.setAttribute("aria-pressed", other === figure);
    for (const lane of all(".lane[data-name]", article)) lane.classList.toggle("now", lane.dataset.name === figure.dataset.name);
  };
  left.src = figures[0].querySelector("img").src;
  left.alt = figures[0].querySelector("img").alt;
  for (const figure of figures.slice(1)) {
    figure.tabIndex = 0;
    figure.setAttribute("role", "button");
    // A button is read by its name alone, so that the name has to say what the caption says.
    const caption = all("figcaption > *", figure).map((part) => part.textContent).join(", ");
    figure.setAttribute("aria-label", `${caption}; hold it against ${figures[0].dataset.name}`);
    figure.addEventListener("click", () => show(figure));
    figure.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      show(figure);
    });
  }
  for (const figure of figures.slice(1)) {
    figure.querySelector(".diff").append(...[figures[0], figure].map((of) => {
      const picture = document.createElement("img");
      picture.src = of.querySelector("img").src;
      picture.alt = "";
      return picture;
    }));
  }
  show(figures.find((figure) => figure.classList.contains("best")) || figures[figures.length - 1]);
  if (slide) {
    const move = () => stage.style.setProperty("--at", `${slide.value}%`);
    const drag = (event) => {
      const box = stage.getBoundingClientRect();
      slide.value = 100 * (event.clientX - box.x) / box.width;
      move();
    };
    slide.addEventListener("input", move);
    stage.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      stage.setPointerCapture(event.pointerId);
      slide.focus({ preventScroll: true });
      drag(event);
    });
    stage.addEventListener("pointermove", (event) => { if (stage.hasPointerCapture(event.pointerId)) drag(event); });
  }
  stage.hidden = false;
}

// One clock for all clips, whichever of the players is used: they cannot fall out of step.
{
  const players = all(".player").map((player) => ["button", "input", "output"].map((name) => player.querySelector(name)));
  const { frames, milliseconds } = document.querySelector(".player")?.dataset ?? {};
  let frame = 0, timer = null;
  const show = (to) => {
    frame = Number(to);
    document.documentElement.style.setProperty("--frame", frame);
    for (const [, slide, output] of players) [slide.value, output.textContent] = [frame, `${frame + 1} of ${frames}`];
  };
  const play = (on) => {
    clearInterval(timer);
    timer = on ? setInterval(() => show((frame + 1) % frames), milliseconds) : null;
    for (const [button] of players) button.textContent = on ? "Pause" : "Play";
  };
  for (const [button, slide] of players) {
    button.addEventListener("click", () => play(timer === null));
    slide.addEventListener("input", () => show(slide.value));
    slide.addEventListener("pointerdown", () => play(false));
    slide.addEventListener("keydown", (event) => { if (event.key in arrows) play(false); });
  }
  if (players.length) {
    show(0);
    play(!matchMedia("(prefers-reduced-motion: reduce)").matches);
    for (const player of all(".player")) player.hidden = false;
  }
}

// The runs: one cursor over the strips, and below them what every cache decided in that step, and why.
for (const runs of all(".runs")) {
  const steps = Number(runs.dataset.steps), readout = runs.querySelector(".readout");
  const cursor = runs.appendChild(document.createElement("div"));
  let step = null;
  const show = (to) => {
    step = clamp(to, 0, steps - 1);
    cursor.className = "cursor";
    cursor.style.setProperty("--step", step);
    readout.replaceChildren(...all(".lane.cache", runs).map((lane) => {
      const line = document.createElement("div"), name = document.createElement("b");
      name.textContent = lane.dataset.name;
      name.style.color = `var(${lane.style.getPropertyValue("--tone").match(/--\w+/)[0]})`;
      const words = all(".strip", lane).map((strip) => strip.children[step]?.title).filter(Boolean);
      line.append(name, " ", words.join("; "));
      return line;
    }));
  };
  const at = (event) => {
    const box = runs.querySelector(".strips").getBoundingClientRect();
    if (event.clientX >= box.x) show(Math.floor(steps * (event.clientX - box.x) / box.width));
  };
  runs.addEventListener("pointermove", at);
  runs.addEventListener("pointerdown", at);
  runs.addEventListener("keydown", (event) => {
    if (!(event.key in arrows)) return;
    event.preventDefault();
    show((step ?? -1) + arrows[event.key]);
  });
}
