// The connection to the server: reads the stream of events, and opens it again whenever it ends.

export const LIVE = "live";
export const CONNECTING = "connecting";
export const LOST = "lost";
export const LOCKED = "locked";

const FIRST_PAUSE = 0.5;
const LONGEST_PAUSE = 8;
const SILENCE = 15;
/** The server says something every 5 seconds; after so many without, the connection counts as dead. */
const SHORTEST_STREAM = 2;
/** A stream that ends sooner, in seconds, was cut off by somebody on the way: the next one is not asked for at once. */
const LONGEST_EVENT = 32 * 1024 * 1024;
/** In characters; no server of ours says so much at once. */

/** Follows the events at `url`. Tells `onMessage` each message, and `onState` the state, a reason and a pause. */
export class Connection {
  constructor(url, { onMessage, onState, key }) {
    this._url = url;
    this._onMessage = onMessage;
    this._onState = onState;
    this._key = key;
    this._abort = null;
    this._timer = 0;
    this._pause = FIRST_PAUSE;
    /** When the server was last heard of, as `performance.now()` tells. */
    this.heard = 0;
  }

  /** Begin, or begin anew at once. */
  start() {
    this.stop();
    this._run(this._abort = new AbortController());
  }

  /** End, until it is started again. */
  stop() {
    clearTimeout(this._timer);
    if (this._abort) this._abort.abort();
    this._abort = null;
  }

  async _run(abort) {
    const begin = performance.now();
    let ended;
    try {
      ended = await this._follow(abort);
    } catch (error) {
      ended = { state: LOST, reason: error.reason || "The server does not answer." };
    }
    if (abort !== this._abort) return;
    abort.abort();
    if (ended.state === LIVE && performance.now() - begin > 1000 * SHORTEST_STREAM) {
      this._run(this._abort = new AbortController());
    } else if (ended.state === LOCKED) {
      this._onState(LOCKED, ended.reason);
    } else {
      this._retryLater(ended.reason || "The stream was cut off.");
    }
  }

  _retryLater(reason) {
    const pause = this._pause * (0.8 + 0.4 * Math.random());
    this._pause = Math.min(LONGEST_PAUSE, 2 * this._pause);
    this._onState(LOST, reason, pause);
    this._timer = setTimeout(() => this.start(), 1000 * pause);
  }

  async _follow(abort) {
    const silence = new Watchdog(() => abort.abort(), SILENCE);
    try {
      const response = await fetch(this._url, { headers: this._headers(), signal: abort.signal, cache: "no-store" });
      if (response.status === 401) return { state: LOCKED, reason: this._key() ? "This key does not open it." : "" };
      if (!response.ok) throw await refusal(response);
      return await this._read(response.body.getReader(), silence);
    } finally {
      silence.stop();
    }
  }

  _headers() {
    const key = this._key();
    return key ? { Authorization: `Bearer ${key}` } : {};
  }

  async _read(reader, silence) {
    const decoder = new TextDecoder();
    const parser = new EventParser((message) => this._take(message));
    let last = null;
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      silence.reset();
      this.heard = performance.now();
      last = parser.add(decoder.decode(value, { stream: true })) || last;
    }
    // A stream ends after a while, and the next one begins at once; but not from a server that is about to end.
    if (last && last.state === "ready") return { state: LIVE };
    return { state: LOST, reason: last ? "The server is shutting down." : "The server does not answer." };
  }

  _take(message) {
    this._pause = FIRST_PAUSE;
    this._onMessage(message);
    this._onState(LIVE, "");
  }
}

/** Calls `bark` after so many seconds in which it was not reset. */
class Watchdog {
  constructor(bark, seconds) {
    this._bark = bark;
    this._seconds = seconds;
    this.reset();
  }

  reset() {
    clearTimeout(this._timer);
    this._timer = setTimeout(this._bark, 1000 * this._seconds);
  }

  stop() {
    clearTimeout(this._timer);
  }
}

/** Cuts server-sent events out of what comes, and calls `take` with the data of each; comments are passed over. */
export class EventParser {
  constructor(take) {
    this._take = take;
    this._rest = "";
  }

  /** Take in a piece of text; returns the last message that it completes, if any. */
  add(text) {
    const events = (this._rest + text).split("\n\n");
    this._rest = events.pop();
    if (this._rest.length > LONGEST_EVENT) throw new Error("an event is too long");
    let last = null;
    for (const event of events) {
      const lines = event.split("\n").filter((line) => line.startsWith("data: "));
      if (lines.length) this._take(last = JSON.parse(lines.map((line) => line.slice(6)).join("\n")));
    }
    return last;
  }
}

async function refusal(response) {
  const error = new Error(`HTTP ${response.status}`);
  const body = await response.json().catch(() => null);
  const message = body && body.error && body.error.message;
  error.reason = message ? sentence(message) : `The server answers with ${response.status}.`;
  return error;
}

function sentence(text) {
  const end = /[.!?]$/.test(text) ? "" : ".";
  return text.charAt(0).toUpperCase() + text.slice(1) + end;
}
