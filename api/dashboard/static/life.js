// One request's life, in a dialog.

import { hatch, palette, prepare } from "./canvas.js";
import { byId, keepList, make, setAttribute, setText } from "./dom.js";
import { age, count, duration, outcome } from "./format.js";
import { doingOf } from "./requests.js";
import { OUTPUT, PARKED, PROMPT, WAITING, endOf, phasesOf } from "./stays.js";

const ASK_EVERY = 1;
const PHASE_NAMES = { [WAITING]: "waiting", [PROMPT]: "prompt", [OUTPUT]: "output", [PARKED]: "parked" };

/** Shows a request while its dialog is open. `ask` fetches what the server says of it just now. */
export class Life {
  constructor(ask) {
    this._ask = ask;
    this._dialog = byId("life");
    this._id = null;
    this._told = null;
    this._asked = -Infinity;
    byId("life-close").addEventListener("click", () => this._dialog.close());
    this._dialog.addEventListener("close", () => (this._id = this._told = null));
    this._dialog.addEventListener("click", (event) => event.target === this._dialog && this._dialog.close());
  }

  /** Show the request of that id. */
  open(id, store, now) {
    if (!store.find(id)) return;
    this._id = id;
    this._told = null;
    this._asked = -Infinity;
    if (!this._dialog.open) this._dialog.showModal();
    this.render(store, now);
  }

  /** Bring it up to date; nothing happens while it is closed. */
  render(store, now) {
    if (this._id === null) return;
    const request = store.find(this._id);
    if (!request) {
      setText(byId("life-state"), "It ended too long ago: nothing more is known of it.");
      return;
    }
    if (request.outcome === null) this._askAgain(now);
    else this._told = null;
    setText(byId("life-title"), request.id);
    setText(byId("life-state"), this._stateOf(request));
    this._renderFacts(store, request, now);
    renderEvents(request);
    drawBar(byId("life-bar"), request, now);
  }

  async _askAgain(now) {
    if (now - this._asked < ASK_EVERY) return;
    this._asked = now;
    const id = this._id;
    const told = await this._ask(id);
    if (this._id === id) this._told = told;
  }

  _stateOf(request) {
    if (request.outcome !== null) return `It has ended: ${outcome(request.outcome)}.`;
    if (!this._told) return request.state === "waiting" ? "It waits." : `It runs: ${doingOf(request)}.`;
    const start = this._told.estimated_start;
    const likely = start === null || start === undefined ? "" : ` It is likely to start in ${duration(start)}.`;
    return `${this._told.state === "waiting" ? "It waits: " : ""}${this._told.reason}.${likely}`;
  }

  _renderFacts(store, request, now) {
    const end = endOf(request);
    const first = request.first_token;
    const last = end === null ? now : end;
    const gap = first !== null && request.generated_tokens > 1 ? (last - first) / (request.generated_tokens - 1) : null;
    const spent = timesOf(request, last);
    const position = this._told && this._told.position !== null ? this._told.position : null;
    const facts = [
      ["Level", `${request.level} ${store.levelName(request.level)}`],
      ["Tenant", request.tenant || null],
      ["Ahead of it", position === null ? null : count(position)],
      ["Lane", request.lane],
      ["Prompt", `${count(request.prompt_tokens)} tokens, ${count(request.cached_tokens)} cached`],
      ["Output", `${count(request.generated_tokens)} of at most ${count(request.max_tokens)} tokens`],
      ["First token", first === null ? null : `after ${duration(first - request.arrival)}`],
      ["Waited", duration(spent[WAITING])],
      ["Was parked", spent[PARKED] ? duration(spent[PARKED]) : null],
      ["Each further token", gap === null ? null : duration(gap)],
      [end === null ? "Age" : "Took", end === null ? age(now - request.arrival) : duration(end - request.arrival)],
    ].filter(([, text]) => text !== null);
    keepList(
      byId("life-facts"),
      facts,
      ([name]) => name,
      ([name]) => make("div", "", make("dt", "", name), make("dd")),
      (item, [, text]) => setText(item.lastElementChild, text),
    );
  }
}

/** Return how long a request has been in each phase, until now or its end. */
function timesOf(request, last) {
  const spent = { [WAITING]: 0, [PROMPT]: 0, [OUTPUT]: 0, [PARKED]: 0 };
  for (const { phase, from, to } of phasesOf(request)) spent[phase] += (to === null ? last : to) - from;
  return spent;
}

function renderEvents(request) {
  const begin = request.arrival;
  const events = request.events.map(([kind, time]) => [kind, time]);
  if (request.first_token !== null) events.push(["first token", request.first_token]);
  events.sort((one, other) => one[1] - other[1]);
  keepList(
    byId("life-events"),
    events,
    ([kind, time]) => `${kind} ${time}`,
    ([kind, time]) => make("li", "", make("span", "number", `+${duration(time - begin)}`), make("span", "", kind)),
    () => {},
  );
}

function drawBar(canvas, request, now) {
  const phases = phasesOf(request);
  const told = phases.map(({ phase, from, to }) => `${PHASE_NAMES[phase]} ${duration((to === null ? now : to) - from)}`);
  setAttribute(canvas, "aria-label", `Its life: ${told.join(", ")}.`);
  const drawing = prepare(canvas);
  if (!drawing || !phases.length) return;
  const { context, width, height } = drawing;
  const end = endOf(request);
  const begin = phases[0].from;
  const scale = width / Math.max(1e-6, (end === null ? now : end) - begin);
  for (const { phase, from, to } of phases) {
    const left = (from - begin) * scale;
    drawPart(context, phase, left, Math.max(1, ((to === null ? now : to) - begin) * scale - left), height);
  }
}

function drawPart(context, phase, left, width, height) {
  const colours = palette();
  if (phase === WAITING) {
    context.fillStyle = colours.muted;
    context.fillRect(left, height / 2 - 1, width, 2);
    return;
  }
  context.fillStyle = phase === PROMPT ? colours.prefill : phase === OUTPUT ? colours.decode : hatch(context, colours.paused, "strokes");
  const [top, tall] = phase === PROMPT ? [0, height * 0.6] : phase === OUTPUT ? [height * 0.4, height * 0.6] : [height * 0.2, height * 0.6];
  context.fillRect(left, top, width, tall);
}
