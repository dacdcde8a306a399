// Numbers, times and names as text.

const WHOLE = new Intl.NumberFormat("en");

/** Return a count with its thousands apart. */
export function count(number) {
  return WHOLE.format(number);
}

/** Return a rate: one decimal while it is small. */
export function rate(number) {
  return number > 0 && number < 9.95 ? number.toFixed(1) : WHOLE.format(Math.round(number));
}

/** Return a share of 1 in per cent; a little is never told as nothing, nor almost all as all. */
export function percent(share) {
  const whole = Math.round(100 * share);
  if (share > 0 && whole === 0) return "<1\u00a0%";
  if (share < 1 && whole === 100) return ">99\u00a0%";
  return `${whole}\u00a0%`;
}

/** Return a duration in the unit that suits it; `seconds` may be null for none. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const time = Math.max(0, seconds);
  if (time < 0.00995) return `${(1000 * time).toFixed(1)} ms`;
  if (time < 0.9995) return `${Math.round(1000 * time)} ms`;
  if (time < 9.95) return `${time.toFixed(1)} s`;
  if (time < 59.5) return `${Math.round(time)} s`;
  return longDuration(Math.round(time));
}

function longDuration(seconds) {
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${String(seconds % 60).padStart(2, "0")}`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")}`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

/** Return an age: like a duration, but nothing below a tenth of a second is worth telling. */
export function age(seconds) {
  const time = Math.max(0, seconds);
  return time < 9.95 ? `${time.toFixed(1)} s` : duration(time);
}

/** Return "1 request", "2 requests". */
export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** Return the end of a request's id, which tells it apart; the whole one is shown with its life. */
export function shortId(id) {
  const [name, choice] = splitChoice(id);
  const random = name.slice(name.indexOf("-") + 1);
  const short = random.length > 10 ? random.slice(-8) : random;
  return choice === "" || choice === "0" ? short : `${short}/${choice}`;
}

function splitChoice(id) {
  const slash = id.lastIndexOf("/");
  return slash < 0 ? [id, ""] : [id.slice(0, slash), id.slice(slash + 1)];
}

const OUTCOMES = {
  stop: "complete",
  length: "max tokens",
  cancelled: "cancelled",
  superseded: "superseded",
  deadline_exceeded: "too late",
  shed: "turned out",
  lane_down: "no lane left",
  engine_unavailable: "server ended",
  request_failed: "failed",
};

/** Return how a request ended, in words. */
export function outcome(code) {
  return OUTCOMES[code] || code.replace(/_/g, " ");
}
