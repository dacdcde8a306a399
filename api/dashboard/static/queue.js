// Those who wait: how many at each level, and for how long.

import { hatch, palette, prepare } from "./canvas.js";
import { byId, keepList, make, setAttribute, setHidden, setText } from "./dom.js";
import { age, count, plural } from "./format.js";
import { levelMark, requestRow, setLevel, updateRow } from "./rows.js";

const MOST_OF_LEVEL = 5;
const [SHORTEST, LONGEST] = [0.1, 1000];
const TICKS = [[0.1, "0.1 s"], [1, "1 s"], [10, "10 s"], [60, "1 min"], [600, "10 min"]];

/** Keeps the levels and the table of those who have waited longest. */
export class Queue {
  constructor(open) {
    this._open = open;
    this._levels = byId("levels");
    this._rows = byId("waiting-rows");
    for (const [seconds, text] of TICKS) {
      const tick = make("span", "", text);
      tick.style.left = `${100 * placeOf(seconds)}%`;
      byId("ages").append(tick);
    }
  }

  /** Bring everything up to date. */
  render(store, now) {
    const waiting = byLevel(store);
    keepList(
      this._levels,
      [...waiting.keys()].sort(),
      (level) => level,
      createLevel,
      (item, level) => updateLevel(item, store, level, waiting.get(level), now),
    );
    const longest = [...waiting.keys()].sort().flatMap((level) => waiting.get(level).slice(0, MOST_OF_LEVEL));
    keepList(
      this._rows,
      longest,
      (request) => request.id,
      (request) => requestRow(request.id, this._open, ["number", "number"]),
      (row, request) => updateRow(row, store, request, [count(request.prompt_tokens), age(now - request.arrival)]),
    );
    setHidden(byId("waiting-empty"), longest.length > 0);
    setHidden(this._rows.parentElement, longest.length === 0);
    setHidden(byId("longest-title"), longest.length === 0);
    const tokens = store.state.waiting_tokens;
    setText(byId("queue-note"), tokens ? `${plural(tokens, "prompt token")} to compute` : "");
  }
}

/** Return the waiting requests of each level that has a name or a request, oldest first. */
function byLevel(store) {
  const waiting = new Map(store.fixed.levels.map((one) => [one.level, []]));
  for (const request of store.live.values()) {
    if (request.state !== "waiting") continue;
    if (!waiting.has(request.level)) waiting.set(request.level, []);
    waiting.get(request.level).push(request);
  }
  for (const requests of waiting.values()) requests.sort((one, other) => one.arrival - other.arrival);
  return waiting;
}

function createLevel() {
  const canvas = make("canvas", "strip");
  canvas.setAttribute("role", "img");
  return make("li", "", levelMark(), canvas, make("span", "number"), make("span", "number small"));
}

function updateLevel(item, store, level, requests, now) {
  const [mark, canvas, number, oldest] = item.children;
  const all = store.state.waiting[level] || 0;
  setLevel(mark, store, level);
  setText(number, count(all));
  setText(oldest, requests.length ? age(now - requests[0].arrival) : "");
  const told = requests.length ? `, the oldest for ${age(now - requests[0].arrival)}` : "";
  setAttribute(canvas, "aria-label", `Ages at level ${level}: ${plural(all, "request")} waiting${told}.`);
  drawAges(canvas, requests, now);
}

/** Return where an age is on the logarithmic scale, from 0 to 1. */
function placeOf(seconds) {
  const place = Math.log(Math.max(seconds, SHORTEST) / SHORTEST) / Math.log(LONGEST / SHORTEST);
  return Math.min(1, place);
}

/** Each request is a stroke at its age; one that came back after it had run is hatched. */
function drawAges(canvas, requests, now) {
  const drawing = prepare(canvas);
  if (!drawing) return;
  const { context, width, height } = drawing;
  const colours = palette();
  context.fillStyle = colours.line;
  for (const [seconds] of TICKS) context.fillRect(Math.round(placeOf(seconds) * (width - 4)) + 1, 0, 1, height);
  context.fillRect(0, height - 1, width, 1);
  for (const request of requests) {
    const parked = request.events.some(([kind]) => kind === "parked");
    const left = placeOf(now - request.arrival) * (width - 4);
    context.globalAlpha = requests.length > 40 ? 0.45 : 0.85;
    context.fillStyle = parked ? hatch(context, colours.paused, "strokes") : colours.ink;
    context.fillRect(left, 2, parked ? 4 : 2, height - 4);
  }
  context.globalAlpha = 1;
}
