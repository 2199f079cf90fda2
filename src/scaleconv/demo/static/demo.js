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
      await show(await ask(path, JSON.stringify(collect())));  // pictures appear in the order of the answers
      tell(panel, "");
    } catch (error) {
      tell(panel, error.message);
    }
    busy = false;
    if (again) { again = false; update(); }
  };
}

// Pictures of the visitor's own, chosen or dropped anywhere on the panel.
function takeFiles(panel, path, show) {
  const take = async ([file]) => {
    if (!file) return;
    try {
      if (file.size > 2 ** 23) throw new Error("This file is too large: at most 8 MiB are taken.");
      show(await ask(path, file, "application/octet-stream"));
    } catch (error) {
      tell(panel, error.message);
    }
  };
  $(`${panel}-file`).addEventListener("change", (event) => take(event.target.files));
  $(panel).addEventListener("dragover", (event) => event.preventDefault());
  $(panel).addEventListener("drop", (event) => { event.preventDefault(); take(event.dataTransfer.files); });
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
}

// Percent right by scale; below it, the number of test images and the scales of training.
function accuracy(pair, { images, scales, plain, invariant }, trained) {
  const rows = $(`${pair}-accuracy`), place = rows.closest("fieldset");
  rows.replaceChildren(...scales.map((scale, at) => element("tr", {}, element("th", { scope: "row", textContent: scale }),
    ...[plain, invariant].map((right) => element("td", { textContent: right[at].toFixed(1) })))));
  place.querySelector(".images").textContent = images.toLocaleString("en");
  place.querySelector(".trained").textContent = trained;
}

// All levels at one magnification, the largest as wide as its frame; with the share that each won, if given by name.
async function levels(place, entries, shares = {}) {
  const shown = entries.map((level) => {
    const stages = ["image", "response"].filter((kind) => level[kind]).map((kind) => {
      const picture = element("img", { src: level[kind], alt: `${kind} at ${level.name}` });
      return element("div", { className: "frame" }, picture);
    });
    const lines = [`peak ${level.peak.toFixed(2)}`, ...(level.name in shares ? [`won ${percent(shares[level.name])}`] : [])];
    const made = element("div", { className: "level" }, ...stages, element("p", {}, element("b", { textContent: level.name })),
      ...lines.map((textContent) => element("p", { textContent })));
    made.style.borderColor = level.colour;
    return made;
  });
  const pictures = shown.flatMap((level) => [...level.querySelectorAll("img")]);
  await Promise.all(pictures.map((picture) => picture.decode()));
  const most = Math.max(...pictures.flatMap((picture) => [picture.naturalWidth, picture.naturalHeight]));
  for (const picture of pictures) picture.style.width = `${100 * picture.naturalWidth / most}%`;
  place.replaceChildren(...shown);
}

async function layers(place, entries) {
  const shown = entries.map(async (layer) => {
    const picture = element("img", { className: "large", src: layer.winners, alt: `Winning scale in ${layer.name}` });
    const map = element("figure", {}, picture, element("figcaption", { textContent: "which scale won" }));
    const grid = element("div", { className: "levels" });
    await levels(grid, layer.levels, Object.fromEntries(layer.legend.map(({ name, share }) => [name, share])));
    return element("div", { className: "layer" },
      element("h3", { textContent: `${layer.name}, responses of channel ${layer.channel}` }),
      element("div", { className: "layer-body" }, map, grid));
  });
  place.replaceChildren(...await Promise.all(shown));
}

// ---------------------------------------------------------------------------------------------------- tabs

const tabs = [...document.querySelectorAll("[role=tab]")];

function choose(tab) {
  for (const stage of [digits, photographs]) stage.play(false);
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

// ---------------------------------------------------------------------------------------------------- galleries

// Buttons with pictures, of which one is chosen, by a click or with the arrow keys.
function gallery(place, entries, chosen) {
  place.replaceChildren(...entries.map(({ value, name, image }) => {
    const button = element("button", { type: "button", value }, element("img", { src: image, alt: "" }));
    button.setAttribute("role", "radio");
    button.setAttribute("aria-label", name);
    button.addEventListener("click", () => chosen(value));
    return button;
  }));
  place.onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const buttons = [...place.children];
    const next = buttons.at((buttons.indexOf(event.target.closest("button")) + step) % buttons.length);
    next.focus();
    chosen(Number(next.value));
  };
}

// Null chooses none; then the first can be reached with the Tab key.
function mark(place, value) {
  for (const button of place.children) {
    const chosen = value !== null && Number(button.value) === value;
    button.setAttribute("aria-checked", chosen);
    button.tabIndex = chosen || (value === null && button === place.firstChild) ? 0 : -1;
  }
}

// ---------------------------------------------------------------------------------------------------- a picture over scales

// The curves have the width of their place on the page and letters of one size everywhere.
const frame = { left: 50, right: 18, top: 26, bottom: 38, low: 0.3, high: 2 };

// A picture named by two networks, at the scale of a slider and over all scales: the elements of a panel whose names
// begin with it. `which` says what picture it is, in the fields of a request. `words`: the picture's kind, the networks.
class Stage {
  constructor(panel, pair, which, words) {
    Object.assign(this, { panel, words, answer: null, timer: null, step: 0.05 });
    this.slider = this.at("scale");
    this.svg = this.at("curve");
    const collect = () => ({ pair, ...which() });
    this.updateNames = live(panel, "/api/classify", () => ({ ...collect(), scale: this.scale }), (answer) => this.name(answer));
    this.updateCurve = live(panel, "/api/curve", collect, (answer) => { this.answer = answer; this.draw(); });
    this.at("play").addEventListener("click", () => this.play(this.timer === null));
    this.slider.addEventListener("input", () => { this.play(false); this.showScale(); this.updateNames(); });
    this.svg.addEventListener("pointerdown", (event) => { this.play(false); this.svg.setPointerCapture(event.pointerId); this.dragTo(event); });
    this.svg.addEventListener("pointermove", (event) => { if (event.buttons) this.dragTo(event); });
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  at(part) { return $(`${this.panel}-${part}`); }

  get scale() { return this.slider.valueAsNumber; }

  update() { this.updateNames(); this.updateCurve(); }

  name({ image, truth, layers: inside, ...answers }) {
    this.at("image").src = image;
    for (const name of ["plain", "invariant"]) {
      const { label, confidence } = answers[name];
      const word = label === truth ? "right" : `wrong: the label is ${truth}`;
      this.at(name).replaceChildren(element("span", { className: "label", textContent: label }),
        ...(truth === null ? [] : [element("span", { className: "verdict-word", textContent: word })]), `${percent(confidence)} sure`);
    }
    return layers(this.at("layers"), inside);
  }

  draw() {
    if (!this.answer) return;
    const { scales, class: of, known } = this.answer;
    const { clientWidth: width, clientHeight: height } = this.svg;
    if (!width) return;
    const floor = height - frame.bottom, end = width - frame.right;
    const x = (scale) => frame.left + (end - frame.left) * (scale - frame.low) / (frame.high - frame.low);
    const y = (chance) => floor - (floor - frame.top) * chance;
    const here = x(this.scale), parts = [];
    const add = (tag, attributes, text) => parts.push(drawn(tag, attributes, text));
    const write = (text, x, y, anchor, name = "") => add("text", { class: `text ${name}`, x, y, "text-anchor": anchor }, text);
    add("path", { class: "axis", d: `M${frame.left} ${frame.top} V${floor} H${end}` });
    for (const chance of [0, 0.5, 1]) write(`${100 * chance} %`, frame.left - 6, y(chance) + 4, "end");
    for (const scale of [0.3, 0.5, 1, 1.5, 2]) write(scale, x(scale), floor + 16, "middle");
    write(`scale of the ${this.words.kind}: drag here`, (frame.left + end) / 2, floor + 33, "middle");
    write(`P(${of})`, 4, 13, "start");
    add("line", { class: "here", id: `${this.panel}-here`, x1: here, x2: here, y1: frame.top, y2: floor });
    const right = {};
    for (const [name, left, line] of [["plain", end - 105, "– –"], ["invariant", end, "—"]]) {
      const { chances, labels } = this.answer[name];
      const points = chances.map((chance, place) => `${x(scales[place])},${y(chance)}`);
      add("polyline", { class: `line ${name}`, points: points.join(" ") });
      for (const [place, chance] of chances.entries()) {
        const kind = labels[place] === of ? "" : " wrong";
        add("circle", { class: `dot ${name}${kind}`, cx: x(scales[place]), cy: y(chance), r: 3.5 });
      }
      write(`${line} ${this.words[name]}`, left, 13, "end", name);
      right[name] = labels.filter((label) => label === of).length;
    }
    add("circle", { class: "handle", cx: here, cy: floor, r: 8 });
    this.svg.replaceChildren(...parts);
    const { kind, plain, invariant } = this.words;
    this.at("curve-caption").textContent = `Probability of ${of} (${known ? `the ${kind}'s label` : `what the ${invariant} names at scale 1`}) ` +
      `against the scale. ${plain} names it at ${right.plain} of ${scales.length} scales, ${invariant} at ${right.invariant}; ` +
      "hollow points are other answers.";
  }

  showScale() {
    this.at("scale-shown").textContent = this.scale.toFixed(2);
    this.draw();
  }

  setScale(scale) {
    const before = this.slider.value;
    this.slider.value = scale;  // the nearest step of the slider, between its ends
    if (this.slider.value === before) return;
    this.showScale();
    this.updateNames();
  }

  dragTo(event) {
    const box = this.svg.getBoundingClientRect();
    const share = (event.clientX - box.left - frame.left) / (box.width - frame.left - frame.right);
    this.setScale(frame.low + (frame.high - frame.low) * share);
  }

  // There and back, a step of the slider at a time.
  play(on) {
    clearInterval(this.timer);
    this.timer = on ? setInterval(() => {
      if (this.scale <= frame.low) this.step = 0.05;
      if (this.scale >= frame.high) this.step = -0.05;
      this.setScale(this.scale + this.step);
    }, 120) : null;
    this.at("play").textContent = on ? "Pause" : "Play";
    for (const name of ["plain", "invariant"]) this.at(name).setAttribute("aria-live", on ? "off" : "polite");
  }

  // The images that the page offers, of which it opens with one.
  open(offered, { index, scale }, pick) {
    gallery(this.at("picker"), offered.map(({ index: value, label, image }) => ({ value, name: `a ${label}`, image })), pick);
    this.slider.value = scale;
    this.at("start").textContent = this.scale;  // the nearest step of the slider
    this.showScale();
    pick(index);
  }
}

// ---------------------------------------------------------------------------------------------------- a digit

const digit = { index: null };
const drawing = new Sketch($("digit-drawing"), 28, 1.0, () => { mark($("digit-picker"), null); digits.update(); });
const digits = new Stage("digit", "digits", () => drawing.empty ? { index: digit.index } : { pixels: drawing.text },
  { kind: "digit", plain: "ConvNet", invariant: "SI-ConvNet" });

function pickDigit(index) {
  drawing.clear();
  digit.index = index;
  mark($("digit-picker"), index);
  digits.update();
}

$("digit-clear").addEventListener("click", () => pickDigit(digit.index));

// ---------------------------------------------------------------------------------------------------- a photograph

const photo = { index: null, pixels: null };
const photographs = new Stage("photo", "photographs", () => photo.pixels ? { pixels: photo.pixels } : { index: photo.index },
  { kind: "picture", plain: "ResNet", invariant: "SI-ResNet" });

function pickPhoto(index) {
  $("photo-file").value = "";
  Object.assign(photo, { index, pixels: null });
  mark($("photo-picker"), index);
  photographs.update();
}

takeFiles("photo", "/api/photograph", ({ pixels }) => {
  photo.pixels = pixels;
  mark($("photo-picker"), null);
  photographs.update();
});

// ---------------------------------------------------------------------------------------------------- a filter

const filter = { examples: [], layers: {}, image: null, number: 0 };
const patch = new Sketch($("filter-drawing"), 9, 0, () => updateFilter());
const updateFilter = live("filter", "/api/filter", () => {
  const { pixels, width, height } = filter.image;
  const layer = $("filter-layer").value;
  const chosen = layer ? { layer, filter: filter.number } : { patch: patch.text };
  return { pixels, width, height, by: document.querySelector("[name=filter-by]:checked").value, ...chosen };
}, (answer) => {
  $("filter-image").src = filter.image.image;
  $("filter-weight-caption").textContent = `Filter ${filter.number}${answer.channels > 1 ? `; pictures are means of ${answer.channels} channels` : ""}. White is 0.`;
  for (const name of ["plain", "invariant"]) {
    $(`filter-${name}`).src = answer[name].image;
    $(`filter-${name}-peak`).textContent = answer[name].peak.toFixed(2);
  }
  $("filter-layer-name").textContent = { scale: "SIConv2d", rotation: "TIConv2d" }[answer.by];
  $("filter-winners").src = answer.winners;
  legend($("filter-legend"), answer.legend);
  return levels($("filter-levels"), answer.levels);
});

function showImage(image) { filter.image = image; updateFilter(); }

$("filter-example").addEventListener("change", () => {
  $("filter-file").value = "";
  showImage(filter.examples[$("filter-example").selectedIndex]);
});
takeFiles("filter", "/api/picture", (image) => {
  showImage(image);
  $("filter-example").selectedIndex = -1; // so that choosing any example is a change
});
$("filter-layer").addEventListener("change", () => {
  const layer = $("filter-layer").value;
  $("filter-patch").hidden = Boolean(layer);
  $("filter-gallery").hidden = $("filter-weight-caption").hidden = !layer;
  const entries = (filter.layers[layer] ?? []).map((image, value) => ({ value, name: `filter ${value}`, image }));
  gallery($("filter-gallery"), entries, pickFilter);
  pickFilter(0);
});

function pickFilter(number) {
  filter.number = number;
  mark($("filter-gallery"), number);
  updateFilter();
}

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

const opened = { digit: () => digits.draw(), filter: updateFilter, scene: updateScene, photo: () => photographs.draw() };

(async () => {
  try {
    const offer = await ask("/api/offer", "{}");
    filter.examples = offer.examples;
    filter.image = offer.examples[0];
    for (const { name, title, filters } of offer.layers) {
      filter.layers[name] = filters;
      $("filter-layer").append(element("option", { value: name, textContent: `${title} (${filters.length} filters)` }));
    }
    $("filter-example").append(...offer.examples.map(({ name }) => element("option", { textContent: name })));
    patch.dab([4.5, 4.5], 2.5);
    for (const [pair, words] of Object.entries(offer.trained)) accuracy(pair, offer.accuracy[pair], words);
    digits.open(offer.offered.digits, offer.start.digits, pickDigit);
    photographs.open(offer.offered.photographs, offer.start.photographs, pickPhoto);
  } catch (error) {
    tell("digit", error.message);
  }
})();
