"use strict";
// The page asks the server for every number and picture, and shows them. Nothing is computed here.

const $ = (id) => document.getElementById(id);
const percent = (share) => `${(100 * share).toFixed(share < 0.9995 ? 1 : 0)} %`;

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function drawn(tag, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

// ---------------------------------------------------------------------------------------------------- asking

async function ask(path, body, type = "application/json") {
  let reply;
  try {
    reply = await fetch(path, { method: "POST", headers: { "Content-Type": type }, body });
  } catch {
    throw new Error("The server does not answer. Is scaleconv demo still running?");
  }
  const json = reply.headers.get("Content-Type") === "application/json";
  const answer = json ? await reply.json() : { error: await reply.text() };  // the server's own refusals are text
  if (!reply.ok) throw new Error(answer.error);
  return answer;
}

function tell(panel, message) {
  const place = $(panel).querySelector(".error");
  place.textContent = message;
  place.hidden = !message;
}

// A function that asks for what `collect` says now. One question is under way at a time; of those that come meanwhile,
// the last is asked afterwards.
function live(panel, path, collect, show) {
  let busy = false, again = false;
  return async function update() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      const fields = collect();
      if (fields) {
        show(await ask(path, JSON.stringify(fields)));
        tell(panel, "");
      }
    } catch (error) {
      tell(panel, error.message);
    }
    busy = false;
    if (again) { again = false; update(); }
  };
}

// ---------------------------------------------------------------------------------------------------- drawing

// A square of cells from 0 to 255 to draw on, with a pointer or with arrow keys and space.
class Sketch {
  constructor(canvas, side, radius, changed) {
    Object.assign(this, { canvas, side, radius, changed, cells: new Uint8Array(side * side) });
    Object.assign(this, { pen: [side >> 1, side >> 1], last: null });
    canvas.width = canvas.height = side;
    canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); this.stroke(event); });
    canvas.addEventListener("pointermove", (event) => { if (event.buttons) this.stroke(event); });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { this.last = null; });
    canvas.addEventListener("keydown", (event) => this.press(event));
    canvas.addEventListener("focus", () => this.show());
    canvas.addEventListener("blur", () => this.show());
    this.show();
  }

  stroke(event) {
    const box = this.canvas.getBoundingClientRect();
    const to = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height].map((x) => x * this.side);
    const from = this.last ?? to;
    const steps = Math.max(1, Math.ceil(2 * Math.hypot(to[0] - from[0], to[1] - from[1])));
    for (let step = 1; step <= steps; step++) this.dab(from.map((start, axis) => start + (to[axis] - start) * step / steps));
    this.last = to;
    this.changed();
  }

  press(event) {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!move && event.key !== " ") return;
    event.preventDefault();
    if (move) this.pen = this.pen.map((place, axis) => Math.min(Math.max(place + move[axis], 0), this.side - 1));
    else { this.dab(this.pen.map((place) => place + 0.5)); this.changed(); }
    this.show();
  }

  // Ink around a point: full within the radius, none one cell beyond.
  dab([x, y], radius = this.radius) {
    for (let row = 0; row < this.side; row++) {
      for (let column = 0; column < this.side; column++) {
        const ink = 255 * (radius + 1 - Math.hypot(column + 0.5 - x, row + 0.5 - y));
        const cell = row * this.side + column;
        this.cells[cell] = Math.max(this.cells[cell], Math.min(255, Math.max(0, ink)));
      }
    }
    this.show();
  }

  show() {
    const context = this.canvas.getContext("2d");
    const image = context.createImageData(this.side, this.side);
    this.cells.forEach((value, cell) => image.data.set([value, value, value, 255], 4 * cell));
    if (this.canvas.matches(":focus-visible")) image.data.set([255, 80, 80, 255], 4 * (this.pen[1] * this.side + this.pen[0]));
    context.putImageData(image, 0, 0);
  }

  clear() { this.cells.fill(0); this.show(); }

  get empty() { return !this.cells.some(Boolean); }

  get text() { return btoa(String.fromCharCode(...this.cells)); }
}

// ---------------------------------------------------------------------------------------------------- showing

function legend(list, entries) {
  list.replaceChildren(...entries.map(({ name, colour, share }) => {
    const swatch = element("span", { className: "swatch" });
    swatch.style.background = colour;
    return element("li", {}, swatch, share === undefined ? name : `${name} ${percent(share)}`);
  }));
  return list;
}

// All levels at one magnification, the largest as wide as its frame.
async function levels(place, entries) {
  const shown = entries.map((level) => {
    const stages = ["image", "response"].filter((kind) => level[kind]).map((kind) => {
      const picture = element("img", { src: level[kind], alt: `${kind} at ${level.name}` });
      return element("div", { className: "stage" }, picture);
    });
    const made = element("div", { className: "level" }, ...stages,
      element("p", {}, element("b", { textContent: level.name }), `peak ${level.peak.toFixed(2)}`));
    made.style.borderColor = level.colour;
    return made;
  });
  const pictures = shown.flatMap((level) => [...level.querySelectorAll("img")]);
  await Promise.all(pictures.map((picture) => picture.decode()));
  const most = Math.max(...pictures.flatMap((picture) => [picture.naturalWidth, picture.naturalHeight]));
  for (const picture of pictures) picture.style.width = `${100 * picture.naturalWidth / most}%`;
  place.replaceChildren(...shown);
}

function layers(place, entries) {
  place.replaceChildren(...entries.map((layer) => {
    const picture = element("img", { className: "large", src: layer.winners, alt: `Winning scale in ${layer.name}` });
    const map = element("figure", {}, picture, element("figcaption", { textContent: "which scale won" }),
      legend(element("ul", { className: "legend" }), layer.legend));
    const grid = element("div", { className: "levels" });
    levels(grid, layer.levels);
    return element("div", { className: "layer" },
      element("h3", { textContent: `${layer.name}, responses of channel ${layer.channel}` }),
      element("div", { className: "layer-body" }, map, grid));
  }));
}

// ---------------------------------------------------------------------------------------------------- tabs

const tabs = [...document.querySelectorAll("[role=tab]")];

function choose(tab) {
  for (const each of tabs) {
    const chosen = each === tab;
    each.setAttribute("aria-selected", chosen);
    each.tabIndex = chosen ? 0 : -1;
    $(each.getAttribute("aria-controls")).hidden = !chosen;
  }
  opened[tab.getAttribute("aria-controls")]();
}

for (const [place, tab] of tabs.entries()) {
  tab.addEventListener("click", () => choose(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs.at((place + step) % tabs.length);
    next.focus();
    choose(next);
  });
}

// ---------------------------------------------------------------------------------------------------- a digit

const digit = { index: null, curve: null };
const drawing = new Sketch($("digit-drawing"), 28, 1.0, () => { pick(null); digitChanged(); });
const whichDigit = () => drawing.empty ? { index: digit.index } : { drawing: drawing.text };

const updateDigit = live("digit", "/api/digit", () => ({ ...whichDigit(), scale: $("digit-scale").valueAsNumber }), (answer) => {
  $("digit-image").src = answer.image;
  for (const name of ["plain", "invariant"]) {
    const { label, confidence } = answer[name];
    $(`digit-${name}`).replaceChildren(element("span", { className: "label", textContent: label }), `${percent(confidence)} sure`);
  }
  layers($("digit-layers"), answer.layers);
});
const updateCurve = live("digit", "/api/curve", whichDigit, (answer) => { digit.curve = answer; drawCurve(); });

function digitChanged() { updateDigit(); updateCurve(); }

function pick(index) {
  digit.index = index ?? digit.index;
  for (const button of $("digit-picker").children) {
    const chosen = Number(button.value) === index;
    button.setAttribute("aria-checked", chosen);
    button.tabIndex = chosen || (index === null && button === $("digit-picker").firstChild) ? 0 : -1;
  }
}

function pickAndShow(index) { drawing.clear(); pick(index); digitChanged(); }

function fillPicker(digits) {
  $("digit-picker").replaceChildren(...digits.map(({ index, label, image }) => {
    const button = element("button", { type: "button", value: index }, element("img", { src: image, alt: "" }));
    button.setAttribute("role", "radio");
    button.setAttribute("aria-label", `a ${label}`);
    button.addEventListener("click", () => pickAndShow(index));
    return button;
  }));
  $("digit-picker").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const buttons = [...$("digit-picker").children];
    const next = buttons.at((buttons.indexOf(event.target.closest("button")) + step) % buttons.length);
    next.focus();
    pickAndShow(Number(next.value));
  });
}

function drawCurve() {
  if (!digit.curve) return;
  const { scales, class: of, known } = digit.curve;
  const x = (scale) => 50 + 490 * (scale - 0.3) / 1.7, y = (chance) => 205 - 180 * chance;
  const parts = [drawn("path", { class: "axis", d: `M50 25 V205 H540` })];
  for (const chance of [0, 0.5, 1]) parts.push(drawn("text", { class: "text", x: 44, y: y(chance) + 4, "text-anchor": "end" }, `${100 * chance} %`));
  for (const scale of [0.3, 0.5, 1, 1.5, 2]) parts.push(drawn("text", { class: "text", x: x(scale), y: 222, "text-anchor": "middle" }, scale));
  parts.push(drawn("text", { class: "text", x: 295, y: 243, "text-anchor": "middle" }, "scale of the digit"));
  parts.push(drawn("text", { class: "text", x: 50, y: 15 }, `probability of ${of}`));
  const here = x($("digit-scale").valueAsNumber);
  parts.push(drawn("line", { class: "here", id: "digit-here", x1: here, x2: here, y1: 25, y2: 205 }));
  const right = {};
  for (const [name, left, title] of [["plain", 250, "– – ConvNet"], ["invariant", 370, "— SI-ConvNet"]]) {
    const { chances, labels } = digit.curve[name];
    const points = chances.map((chance, place) => `${x(scales[place])},${y(chance)}`);
    parts.push(drawn("polyline", { class: `line ${name}`, points: points.join(" ") }));
    for (const [place, chance] of chances.entries()) {
      const kind = labels[place] === of ? "" : " wrong";
      parts.push(drawn("circle", { class: `dot ${name}${kind}`, cx: x(scales[place]), cy: y(chance), r: 3.5 }));
    }
    parts.push(drawn("text", { class: `text ${name}`, x: left, y: 15 }, title));
    right[name] = labels.filter((label) => label === of).length;
  }
  $("digit-curve").replaceChildren(...parts);
  $("digit-curve-caption").textContent = `Probability of ${of} (${known ? "the digit's label" : "what the SI-ConvNet names at scale 1"}) ` +
    `against the scale. ConvNet names it at ${right.plain} of ${scales.length} scales, SI-ConvNet at ${right.invariant}; ` +
    "hollow points are other answers.";
}

$("digit-scale").addEventListener("input", () => {
  $("digit-scale-shown").textContent = $("digit-scale").valueAsNumber.toFixed(2);
  drawCurve();
  updateDigit();
});
$("digit-clear").addEventListener("click", () => pickAndShow(digit.index));

// ---------------------------------------------------------------------------------------------------- a filter

const filter = { examples: [], layers: {}, image: null };
const patch = new Sketch($("filter-drawing"), 9, 0, () => updateFilter());
const updateFilter = live("filter", "/api/filter", () => {
  const { pixels, width, height } = filter.image;
  const layer = $("filter-layer").value;
  const chosen = layer ? { layer, filter: $("filter-number").valueAsNumber } : { patch: patch.text };
  return { pixels, width, height, by: document.querySelector("[name=filter-by]:checked").value, ...chosen };
}, (answer) => {
  $("filter-image").src = filter.image.image;
  $("filter-weight").src = answer.filter;
  $("filter-weight-caption").textContent = answer.channels > 1 ? `filter, mean of its ${answer.channels} channels` : "filter";
  $("filter-output").src = answer.output;
  $("filter-winners").src = answer.winners;
  legend($("filter-legend"), answer.legend);
  levels($("filter-levels"), answer.levels);
});

function showImage(image) { filter.image = image; updateFilter(); }

$("filter-example").addEventListener("change", () => {
  $("filter-file").value = "";
  showImage(filter.examples[$("filter-example").selectedIndex]);
});
$("filter-file").addEventListener("change", async () => {
  const [file] = $("filter-file").files;
  if (!file) return;
  try {
    if (file.size > 2 ** 23) throw new Error("This file is too large: at most 8 MiB are taken.");
    showImage(await ask("/api/picture", file, "application/octet-stream"));
    $("filter-example").selectedIndex = -1; // so that choosing any example is a change
  } catch (error) {
    tell("filter", error.message);
  }
});
$("filter-layer").addEventListener("change", () => {
  const layer = $("filter-layer").value;
  $("filter-patch").hidden = Boolean(layer);
  $("filter-number-label").hidden = !layer;
  $("filter-number").max = layer ? filter.layers[layer] - 1 : 0;
  $("filter-number").value = 0;
  updateFilter();
});
$("filter-number").addEventListener("input", () => { if ($("filter-number").value) updateFilter(); });
$("filter-clear").addEventListener("click", () => { patch.clear(); updateFilter(); });
for (const choice of document.querySelectorAll("[name=filter-by]")) choice.addEventListener("change", updateFilter);

// ---------------------------------------------------------------------------------------------------- a scene

const scene = { seed: 0 };
const updateScene = live("scene", "/api/scene", () => ({
  seed: scene.seed,
  digits: $("scene-digits").valueAsNumber,
  low: $("scene-low").valueAsNumber,
  high: $("scene-high").valueAsNumber,
}), (answer) => {
  $("scene-image").src = answer.image;
  $("scene-truth").src = answer.truth;
  $("scene-caption").textContent = `scene: ${answer.digits.map(({ label, scale }) => `${label} at ×${scale.toFixed(1)}`).join(", ")}`;
  for (const name of ["plain", "invariant"]) {
    $(`scene-${name}`).src = answer[name].labels;
    $(`scene-${name}-right`).textContent = `${percent(answer[name].right)} of the pixels of digits are right`;
  }
  legend($("scene-classes"), answer.classes);
  $("scene-layers").replaceChildren(...answer.layers.map((layer) => element("figure", {},
    element("img", { className: "large", src: layer.winners, alt: `Winning scale in ${layer.name}` }),
    element("figcaption", { textContent: layer.name }))));
  legend($("scene-legend"), answer.layers[0].legend.map(({ name, colour }) => ({ name, colour })));
});

for (const [name, digits] of [["digits", 0], ["low", 1], ["high", 1]]) {
  $(`scene-${name}`).addEventListener("input", () => {
    // The smallest scale pushes the largest up, and the other way round.
    if ($("scene-low").valueAsNumber > $("scene-high").valueAsNumber) {
      const other = name === "low" ? "high" : "low";
      $(`scene-${other}`).value = $(`scene-${name}`).value;
      $(`scene-${other}-shown`).textContent = $(`scene-${name}`).valueAsNumber.toFixed(1);
    }
    $(`scene-${name}-shown`).textContent = $(`scene-${name}`).valueAsNumber.toFixed(digits);
    updateScene();
  });
}
$("scene-next").addEventListener("click", () => { scene.seed += 1; updateScene(); });

// ---------------------------------------------------------------------------------------------------- opening

const opened = { digit: () => {}, filter: updateFilter, scene: updateScene };

(async () => {
  try {
    const offer = await ask("/api/offer", "{}");
    fillPicker(offer.digits);
    filter.examples = offer.examples;
    filter.image = offer.examples[0];
    for (const { name, title, filters } of offer.layers) {
      filter.layers[name] = filters;
      $("filter-layer").append(element("option", { value: name, textContent: `${title} (${filters} filters)` }));
    }
    $("filter-example").append(...offer.examples.map(({ name }) => element("option", { textContent: name })));
    patch.dab([4.5, 4.5], 2.5);
    for (const name of ["digit", "scene"]) $(`${name}-trained`).textContent = offer.trained[`${name}s`];
    pickAndShow(offer.digits[0].index);
  } catch (error) {
    tell("digit", error.message);
  }
})();
