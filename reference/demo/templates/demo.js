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
