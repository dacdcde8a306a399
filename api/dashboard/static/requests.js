// The requests on lanes, and those that ended last.

import { byId, keepList, make, setHidden, setText } from "./dom.js";
import { age, count, duration, outcome } from "./format.js";
import { requestRow, updateRow } from "./rows.js";
import { endOf } from "./stays.js";

const MOST_RUNNING = 64;
const MOST_RESERVED_ROWS = 12;
/** There is room for as many rows as there are places, so that what is below does not move; but not for very many. */
const MOST_ENDED = 12;

/** Keeps both tables. `open` is called with the id of a request that was chosen. */
export class Requests {
  constructor(open) {
    this._open = open;
    this._running = byId("running-rows");
    this._box = byId("running-box");
    this._ended = byId("ended-rows");
  }

  /** Bring the tables up to date. */
  render(store, now) {
    const running = [...store.live.values()].filter((one) => one.state !== "waiting" || one.sequence !== null);
    running.sort((one, other) => one.level - other.level || one.arrival - other.arrival);
    keepList(
      this._running,
      running.slice(0, MOST_RUNNING),
      (request) => request.id,
      (request) => this._createRunning(request),
      (row, request) => updateRunning(row, store, request, now),
    );
    const rows = String(Math.min(store.state.places, MOST_RESERVED_ROWS));
    if (this._box.dataset.rows !== rows) this._box.style.setProperty("--rows", (this._box.dataset.rows = rows));
    setHidden(byId("running-empty"), running.length > 0);
    setHidden(this._running.parentElement, running.length === 0);

    const ended = [...store.ended.values()].slice(-MOST_ENDED).reverse();
    keepList(
      this._ended,
      ended,
      (request) => request.id,
      (request) => requestRow(request.id, this._open, ["", "number", "number optional", "number", "number optional"]),
      (row, request) => updateEnded(row, store, request, now),
    );
    setHidden(byId("ended-empty"), ended.length > 0);
    setHidden(this._ended.parentElement, ended.length === 0);
  }

  _createRunning(request) {
    const row = requestRow(request.id, this._open, ["optional", "doing", "number", "number optional", "number"]);
    row.children[5].append(make("span", "meter", make("span")), make("span"));
    return row;
  }
}

function updateRunning(row, store, request, now) {
  const first = request.first_token === null ? null : request.first_token - request.arrival;
  updateRow(row, store, request, [request.lane, doingOf(request), null, duration(first), age(now - request.arrival)]);
  row.dataset.doing = doingOf(request);
  const [meter, text] = row.children[5].children;
  const share = Math.min(1, request.generated_tokens / Math.max(1, request.max_tokens));
  const width = `${(100 * share).toFixed(1)}%`;
  if (meter.firstElementChild.style.width !== width) meter.firstElementChild.style.width = width;
  setText(text, `${count(request.generated_tokens)} / ${count(request.max_tokens)}`);
}

/** Return what a request does that has a place or cells, in a word. */
export function doingOf(request) {
  if (request.state === "waiting") return "parked";
  if (request.state === "parking") return "giving way";
  return request.first_token === null ? "prefill" : "decode";
}

function updateEnded(row, store, request, now) {
  const end = endOf(request);
  const first = request.first_token === null ? null : request.first_token - request.arrival;
  updateRow(row, store, request, [
    outcome(request.outcome),
    count(request.generated_tokens),
    duration(first),
    duration(end - request.arrival),
    age(now - end),
  ]);
  row.dataset.outcome = request.outcome;
}
