// What the page knows of the server: the last state, and a bounded past.

import { Stays } from "./stays.js";

const MOST_STEPS = 4096;
const MOST_ENDED = 200;
const MOST_LIVE = 5000;
const MOST_SECONDS = 120;

/** Takes in the server's messages. Whatever comes, it holds no more than so much. */
export class Store {
  constructor() {
    this.reset();
  }

  /** Forget everything. */
  reset() {
    this.state = null;
    this.started = null;
    this.fixed = null;
    this.live = new Map();
    this.ended = new Map();
    this.lanes = new Map();
    this.stays = new Stays();
    this.tokens = [];
  }

  /** Take in a snapshot or an update; returns whether it is of another server than before. */
  apply(message) {
    const whole = message.object === "dashboard.snapshot";
    if (!whole && !this.state) return false;
    const other = whole && message.started !== this.started;
    if (other) this.reset();
    if (whole) this._begin(message);
    for (const entry of message.requests) this._take(entry);
    for (const id of message.gone || []) this.live.delete(id);
    this._advance(message);
    this.state = message;
    return other;
  }

  /** Return a request that waits, runs, or ended not long ago. */
  find(id) {
    return this.live.get(id) || this.ended.get(id) || null;
  }

  /** Return the name of a level. */
  levelName(level) {
    const found = this.fixed.levels.find((one) => one.level === level);
    return found ? found.name : `level ${level}`;
  }

  _begin(message) {
    this.started = message.started;
    this.fixed = {
      model: message.model,
      limit: message.limit,
      levels: message.levels,
      showsAll: message.shows_all,
    };
    this.live.clear();
    const names = new Set(message.lanes.map((lane) => lane.name));
    for (const name of this.lanes.keys()) if (!names.has(name)) this.lanes.delete(name);
    this.tokens = [];
  }

  _take(entry) {
    const ended = entry.outcome !== null;
    const [from, to] = ended ? [this.live, this.ended] : [this.ended, this.live];
    from.delete(entry.id);
    if (ended) to.delete(entry.id); // the one that ended last stands last
    to.set(entry.id, entry);
    if (this.ended.size > MOST_ENDED) this.ended.delete(this.ended.keys().next().value);
    if (this.live.size > MOST_LIVE) this.live.delete(this.live.keys().next().value);
    this.stays.take(entry);
  }

  _advance(message) {
    for (const lane of message.lanes) {
      const known = this._lane(lane.name);
      known.state = lane;
      appendSteps(known.steps, lane.new_steps);
    }
    for (const [id, generated, first] of message.progress) {
      const request = this.live.get(id);
      if (!request) continue;
      request.generated_tokens = generated;
      if (request.first_token === first) continue;
      request.first_token = first;
      this.stays.take(request);
    }
    this._countTokens(message.tokens);
  }

  /** The last seconds are told anew each time. */
  _countTokens(tokens) {
    if (!tokens.length) return;
    while (this.tokens.length && this.tokens[this.tokens.length - 1][0] >= tokens[0][0]) this.tokens.pop();
    this.tokens.push(...tokens);
    if (this.tokens.length > MOST_SECONDS) this.tokens.splice(0, this.tokens.length - MOST_SECONDS);
  }

  _lane(name) {
    if (!this.lanes.has(name)) this.lanes.set(name, { name, state: null, steps: [] });
    return this.lanes.get(name);
  }
}

/** Add steps by their numbers: a snapshot tells again of some that are known. */
function appendSteps(steps, fresh) {
  const last = steps.length ? steps[steps.length - 1][0] : 0;
  for (const step of fresh) if (step[0] > last) steps.push(step);
  if (steps.length > 2 * MOST_STEPS) steps.splice(0, steps.length - MOST_STEPS);
}
