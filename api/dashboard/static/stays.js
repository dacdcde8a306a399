// What a request was doing when: over its life, and on the lanes where it had cells.

export const WAITING = "waiting";
export const PROMPT = "prompt";
export const OUTPUT = "output";
export const PARKED = "parked";

const MOST_REQUESTS = 1000;
const NEXT = { accepted: WAITING, admitted: PROMPT, parked: PARKED, "handed over": WAITING, requeued: WAITING };

/** Return the phases of a request's life, each with its beginning and its end, null for a present one. */
export function phasesOf(entry) {
  const marks = entry.events.filter(([kind]) => NEXT[kind]).map(([kind, time]) => [NEXT[kind], time]);
  return toPhases(marks, entry.first_token, endOf(entry));
}

/** Return when a request ended, null when it has not. */
export function endOf(entry) {
  const [kind, time] = entry.events[entry.events.length - 1] || ["", null];
  return entry.outcome !== null || kind === "ended" ? time : null;
}

/** Turn beginnings into phases; with the first token a prompt becomes output, and stays so when it goes on later. */
function toPhases(marks, first, end) {
  const phases = [];
  marks.forEach(([phase, from], index) => {
    const to = index + 1 < marks.length ? marks[index + 1][1] : end;
    if (phase !== PROMPT || first === null || (to !== null && first >= to)) {
      phases.push({ phase, from, to });
    } else if (first <= from) {
      phases.push({ phase: OUTPUT, from, to });
    } else {
      phases.push({ phase: PROMPT, from, to: first }, { phase: OUTPUT, from: first, to });
    }
  });
  return phases;
}

/**
 * The stays of requests on lanes, each in a row of its own while it lasts. A request that is parked with its cells left
 * on the lane stays there. Of what was before the page was opened, only each request's last lane is known.
 */
export class Stays {
  constructor() {
    this._requests = new Map();
    this._rows = new Map();
  }

  /** Return the stays on a lane that reach into the time after `since`. */
  on(lane, since) {
    const found = [];
    for (const { stays } of this._requests.values()) {
      for (const stay of stays) if (stay.lane === lane && (stay.to === null || stay.to > since)) found.push(stay);
    }
    return found;
  }

  /** Take in a request as it is now. */
  take(entry) {
    const known = this._requests.get(entry.id) || { lanes: new Map(), keeps: new Map(), rows: new Map(), stays: [] };
    this._requests.delete(entry.id);
    this._requests.set(entry.id, known);
    learn(entry, known);
    known.stays = staysOf(entry, known);
    for (const stay of known.stays) this._giveRow(stay, known.rows);
    if (this._requests.size > MOST_REQUESTS) this._requests.delete(this._requests.keys().next().value);
  }

  /** A row is busy until the stay that has it ends; a new stay gets the first one that is not. */
  _giveRow(stay, rows) {
    if (!this._rows.has(stay.lane)) this._rows.set(stay.lane, []);
    const lane = this._rows.get(stay.lane);
    if (!rows.has(stay.from)) {
      const free = lane.findIndex((row) => row.until <= stay.from);
      rows.set(stay.from, free < 0 ? lane.length : free);
      lane[rows.get(stay.from)] = { holder: stay.key, until: 0 };
    }
    stay.row = rows.get(stay.from);
    if (lane[stay.row].holder === stay.key) lane[stay.row].until = stay.to === null ? Infinity : stay.to;
  }
}

/** Return a request's stays on the lanes that are known. */
function staysOf(entry, known) {
  const stays = [];
  let stay = null;
  const leave = (time) => {
    if (stay) stay.to = time;
    stay = null;
  };
  for (const [kind, time] of entry.events) {
    if (kind === "admitted") {
      const lane = known.lanes.get(time);
      if (stay && stay.lane !== lane) leave(time);
      if (!stay && lane) stays.push((stay = newStay(entry, lane, time)));
      if (stay) stay.marks.push([PROMPT, time]);
    } else if (kind === "parked" && stay && known.keeps.get(time)) {
      stay.marks.push([PARKED, time]);
    } else if (kind === "parked" || kind === "handed over" || kind === "requeued" || kind === "ended") {
      if (stay) stay.gaveWay = kind === "parked";
      leave(time);
    }
  }
  for (const one of stays) one.phases = toPhases(one.marks, entry.first_token, one.to);
  return stays;
}

function newStay(entry, lane, from) {
  return { key: `${from} ${entry.id}`, id: entry.id, level: entry.level, lane, from, to: null, row: 0, marks: [], gaveWay: false };
}

/** Note what the events do not tell: on which lane a request was admitted, and whether its cells stayed when parked. */
function learn(entry, known) {
  const admitted = entry.events.filter(([kind]) => kind === "admitted").pop();
  if (admitted && !known.lanes.has(admitted[1])) known.lanes.set(admitted[1], entry.lane);
  const [kind, time] = entry.events.filter(([one]) => one !== "prioritized").pop();
  if (kind === "parked") known.keeps.set(time, entry.sequence !== null);
}
