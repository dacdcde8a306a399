// The lanes: what each did step by step, and beneath it the requests that it had, as bars.

import { hatch, palette, prepare } from "./canvas.js";
import { byId, keepList, make, setAttribute, setText } from "./dom.js";
import { count, percent, plural } from "./format.js";
import { PARKED, PROMPT } from "./stays.js";

const STEPS_HEIGHT = 44;
const BAR = { height: 9, pitch: 12 };
const THIN_BAR = { height: 4, pitch: 5 };
const MANY_ROWS = 16;
/** From so many rows on they are thin. */
const MOST_ROWS = 64;
const LONGEST_SPAN = 120;
const LARGEST_PROMPT = 2048;
const GRID_SECONDS = { 10: 1, 30: 5, 120: 20 };

/** Draws all lanes over the last seconds. `open` is called with the id of a request that was clicked. */
export class Timeline {
  constructor(open) {
    this._open = open;
    this._list = byId("lane-list");
    this._axis = byId("axis");
    this._hits = new WeakMap();
    this.span = 30;
  }

  /** Draw everything as it is at the server's time `now`. */
  render(store, now) {
    const lanes = [...store.lanes.values()].filter((lane) => lane.state);
    keepList(
      this._list,
      lanes,
      (lane) => lane.name,
      (lane) => this._create(lane),
      (item, lane) => this._update(item, lane, store, now),
    );
    this._drawAxis();
  }

  _create(lane) {
    const canvas = make("canvas", "strip");
    canvas.setAttribute("role", "img");
    canvas.addEventListener("click", (event) => this._click(canvas, event));
    canvas.addEventListener("pointermove", (event) => {
      canvas.classList.toggle("pointing", this._hit(canvas, event) !== null);
    });
    const label = make("div", "lane-label", make("h3", "", lane.name), make("p", "doing"), make("p", "small shares"));
    return make("li", "lane", label, canvas);
  }

  _update(item, lane, store, now) {
    const since = now - this.span;
    const [doing, shares] = item.querySelectorAll("p");
    const canvas = item.querySelector("canvas");
    const past = sharesOf(lane.steps, Math.max(since, store.started), now);
    setText(doing, doingOf(lane.state));
    doing.dataset.state = lane.state.down ? "down" : lane.state.paused ? "paused" : "";
    setText(shares, told(past));
    const remembered = store.stays.on(lane.name, now - LONGEST_SPAN).filter((stay) => stay.row < MOST_ROWS);
    const stays = remembered.filter((stay) => stay.to === null || stay.to > since);
    const rows = Math.max(Math.min(lane.state.places, MOST_ROWS), ...remembered.map((stay) => stay.row + 1));
    const bar = rows < MANY_ROWS ? BAR : THIN_BAR;
    const height = `${STEPS_HEIGHT + 6 + rows * bar.pitch}px`;
    if (canvas.style.height !== height) canvas.style.height = height;
    setAttribute(canvas, "aria-label", describe(lane, past, stays, this.span));
    this._draw(canvas, lane, stays, bar, since, now);
  }

  _draw(canvas, lane, stays, bar, since, now) {
    const drawing = prepare(canvas);
    if (!drawing) return;
    const scale = drawing.width / this.span;
    const at = (time) => (time - since) * scale;
    drawGrid(drawing, this.span, scale);
    drawSteps(drawing.context, lane, since, at);
    this._hits.set(canvas, drawStays(drawing, stays, bar, at, now));
  }

  _drawAxis() {
    const drawing = prepare(this._axis);
    if (!drawing) return;
    const { context, width } = drawing;
    context.fillStyle = palette().muted;
    context.font = `11px ${getComputedStyle(this._axis).fontFamily}`;
    context.textBaseline = "top";
    const unit = GRID_SECONDS[this.span];
    for (let ago = 0; ago < this.span; ago += unit * (width < 420 && this.span !== 120 ? 2 : 1)) {
      const text = ago === 0 ? "now" : `−${ago} s`;
      context.textAlign = ago === 0 ? "right" : "center";
      context.fillText(text, width - (ago / this.span) * width, 2);
    }
  }

  _click(canvas, event) {
    const id = this._hit(canvas, event);
    if (id !== null) this._open(id);
  }

  _hit(canvas, event) {
    const found = (this._hits.get(canvas) || []).find(
      (box) =>
        event.offsetX >= box.left - 2 && event.offsetX <= box.right + 2 &&
        event.offsetY >= box.top - 1 && event.offsetY <= box.bottom + 1,
    );
    return found ? found.id : null;
  }
}

function doingOf(state) {
  if (state.down) return "out: it failed too often";
  if (!state.serving) return "its context is built anew";
  const running = `${state.running} of ${plural(state.places, "place")}`;
  return state.paused ? `${running} · paused` : running;
}

function describe(lane, past, stays, span) {
  const parked = stays.filter((stay) => stay.gaveWay || stay.phases.some((one) => one.phase === PARKED)).length;
  return (
    `Lane ${lane.name}, of the last ${span} seconds: ${told(past)}; ` +
    `${plural(stays.length, "request")}, ${count(parked)} parked.`
  );
}

function told({ decode, prefill, lost, idle }) {
  const broken = lost > 0 ? ` · broken off ${percent(lost)}` : "";
  return `decode ${percent(decode)} · prefill ${percent(prefill)}${broken} · idle ${percent(idle)}`;
}

/** Return which shares of the time went into steps with a prompt, into other steps, into lost ones, and into nothing. */
function sharesOf(steps, since, now) {
  let [decode, prefill, lost] = [0, 0, 0];
  for (let index = steps.length - 1; index >= 0 && steps[index][1] + steps[index][2] > since; index -= 1) {
    const [, begin, seconds, , tokens, abandoned] = steps[index];
    const inside = begin + seconds - Math.max(begin, since);
    if (abandoned) lost += inside;
    else if (tokens > 0) prefill += inside;
    else decode += inside;
  }
  const span = Math.max(now - since, decode + prefill + lost, 1e-3);
  const idle = 1 - (decode + prefill + lost) / span;
  return { decode: decode / span, prefill: prefill / span, lost: lost / span, idle };
}

function drawGrid({ context, width }, span, scale) {
  context.fillStyle = palette().line;
  for (let ago = GRID_SECONDS[span]; ago < span; ago += GRID_SECONDS[span]) {
    context.fillRect(Math.round(width - ago * scale), 0, 1, STEPS_HEIGHT);
  }
  context.fillRect(0, STEPS_HEIGHT - 0.5, width, 1);
}

/** Output rises from the base line, by its rows; prompts hang from the top, by their tokens, on a logarithmic scale. */
function drawSteps(context, lane, since, at) {
  const colours = palette();
  const largest = Math.log2(1 + LARGEST_PROMPT);
  for (let index = lane.steps.length - 1; index >= 0; index -= 1) {
    const [, begin, seconds, rows, tokens, abandoned] = lane.steps[index];
    if (begin + seconds < since) break;
    const left = at(begin);
    const width = Math.max(1, at(begin + seconds) - left - 0.5);
    if (abandoned) {
      context.fillStyle = hatch(context, colours.alarm, "dots");
      context.fillRect(left, 0, width, STEPS_HEIGHT);
      context.fillStyle = colours.alarm;
      context.fillRect(left + width - 1, 0, 2, STEPS_HEIGHT);
      continue;
    }
    if (rows > 0) {
      const height = 3 + (STEPS_HEIGHT * 0.55 - 3) * Math.min(1, rows / lane.state.places);
      context.fillStyle = colours.decode;
      context.fillRect(left, STEPS_HEIGHT - height, width, height);
    }
    if (tokens > 0) {
      context.fillStyle = colours.prefill;
      context.fillRect(left, 0, width, 2 + STEPS_HEIGHT * 0.36 * Math.min(1, Math.log2(1 + tokens) / largest));
    }
  }
}

/** Draw the requests, and return where each is. */
function drawStays({ context, width }, stays, bar, at, now) {
  const colours = palette();
  const boxes = [];
  context.font = `600 9px ${getComputedStyle(document.body).fontFamily}`;
  context.textBaseline = "middle";
  for (const stay of stays) {
    const top = STEPS_HEIGHT + 6 + stay.row * bar.pitch;
    const { height } = bar;
    for (const { phase, from, to } of stay.phases) {
      const left = Math.max(-2, at(from));
      const right = Math.max(left + 1.5, Math.min(width, at(to === null ? now : to)));
      drawPhase(context, colours, phase, [left, top, right - left, height]);
    }
    const left = Math.max(0, at(stay.from));
    const right = Math.min(width, at(stay.to === null ? now : stay.to));
    if (right - left > 14 && bar === BAR) drawLevel(context, colours, stay.level, left, top);
    if (stay.gaveWay) drawGivenWay(context, colours, right, top, height);
    boxes.push({ id: stay.id, left, right, top, bottom: top + height });
  }
  return boxes;
}

function drawPhase(context, colours, phase, [left, top, width, height]) {
  if (phase === PARKED) {
    context.fillStyle = hatch(context, colours.paused, "strokes");
    context.fillRect(left, top, width, height);
    context.strokeStyle = colours.paused;
    context.strokeRect(left + 0.5, top + 0.5, Math.max(0, width - 1), height - 1);
    return;
  }
  context.fillStyle = phase === PROMPT ? colours.prefill : colours.decode;
  context.fillRect(left, top, width, phase === PROMPT ? height / 2 : height);
}

/** A request that was parked and left no cells ends in an edge like a flag's. */
function drawGivenWay(context, colours, right, top, height) {
  context.fillStyle = colours.paused;
  context.beginPath();
  context.moveTo(right, top);
  context.lineTo(right + 6, top + height / 2);
  context.lineTo(right, top + height);
  context.fill();
}

function drawLevel(context, colours, level, left, top) {
  context.fillStyle = colours.paper;
  context.fillRect(left + 1.5, top + 1, 8, BAR.height - 2);
  context.fillStyle = colours.ink;
  context.textAlign = "center";
  context.fillText(String(level), left + 5.5, top + BAR.height / 2 + 0.5);
}
