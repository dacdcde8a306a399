// The server's clock, as seen from here. The browser's own time of day is never looked at: it may be wrong.

const REMEMBERED = 40;

/** Tells the server's time from what it said of it, and from how long ago that was. */
export class ServerClock {
  constructor() {
    this._offsets = [];
  }

  /** Take in the server's time, as it has just arrived. */
  observe(time) {
    this._offsets.push(performance.now() / 1000 - time);
    if (this._offsets.length > REMEMBERED) this._offsets.shift();
  }

  /** Forget all: another server has another clock. */
  reset() {
    this._offsets.length = 0;
  }

  /** Return the server's time at a moment of `performance.now()`. What came quickest tells best. */
  timeAt(moment) {
    return this._offsets.length ? moment / 1000 - Math.min(...this._offsets) : 0;
  }
}
