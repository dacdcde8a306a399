// The server's clock, as seen from here. The browser's own time of day is never looked at: it may be wrong.

const REMEMBERED = 40;

/** Tells the server's time from what it said of it, and from how long ago that was. */
export class ServerClock {
  constructor(read = () => performance.now() / 1000) {
    this._read = read;
    this._offsets = [];
  }

  /** Take in the server's time, as it has just arrived. */
  observe(time) {
    this._offsets.push(this._read() - time);
    if (this._offsets.length > REMEMBERED) this._offsets.shift();
  }

  /** Forget all: another server has another clock. */
  reset() {
    this._offsets.length = 0;
  }

  /** Return the server's time. What came quickest tells best. */
  now() {
    return this._offsets.length ? this._read() - Math.min(...this._offsets) : 0;
  }
}
