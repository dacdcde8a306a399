// The figures at the top.

import { palette, prepare } from "./canvas.js";
import { byId, setAttribute, setText } from "./dom.js";
import { age, count, percent, plural, rate } from "./format.js";

const MEAN_SECONDS = 5;
const LINE_SECONDS = 120;

/** Bring the figures up to date. */
export function renderReadouts(store, now) {
  const { state } = store;
  const [output, prompts] = ratesOf(store.tokens, now);
  setText(byId("output-rate"), rate(output));
  setText(byId("prompt-rate"), rate(prompts));
  drawRate(byId("rate-line"), store.tokens, now);

  const { counters } = state;
  const cached = counters.prompt_tokens ? counters.cached_tokens / counters.prompt_tokens : 0;
  setText(byId("cached-share"), cached ? `${percent(cached)} of them were cached` : "");

  const live = [...store.live.values()];
  const parked = live.filter((one) => one.state !== "running" && one.events.some(([kind]) => kind === "parked")).length;
  setText(byId("running-count"), count(total(state.running)));
  setText(byId("places"), `of ${plural(state.places, "place")}`);
  setText(byId("parked-count"), parked ? `${count(parked)} parked` : "");

  const waiting = live.filter((one) => one.state === "waiting");
  const oldest = waiting.length ? now - Math.min(...waiting.map((one) => one.arrival)) : null;
  setText(byId("waiting-count"), count(total(state.waiting)));
  setText(byId("waiting-oldest"), oldest === null ? "" : `the oldest for ${age(oldest)}`);

  setText(byId("finished-count"), count(counters.finished));
  setText(byId("in-time"), counters.finished ? `${percent(counters.in_time / counters.finished)} in time` : "");
  setText(byId("other-ends"), otherEnds(counters));
}

/** Return the sum of what is counted by level. */
export function total(byLevel) {
  return Object.values(byLevel).reduce((sum, number) => sum + number, 0);
}

function otherEnds(counters) {
  const told = [
    [counters.cancelled, "cancelled"],
    [counters.failed, "failed"],
    [counters.expired, "too late"],
    [counters.rejected, "refused"],
  ];
  return told.filter(([number]) => number).map(([number, name]) => `${count(number)} ${name}`).join(" · ");
}

/** Return the tokens of a second lately, of outputs and of prompts; the second under way is not over. */
function ratesOf(tokens, now) {
  const present = Math.floor(now);
  let [output, prompts] = [0, 0];
  for (const [second, generated, prompt] of tokens) {
    if (second < present - MEAN_SECONDS || second >= present) continue;
    output += generated;
    prompts += prompt;
  }
  return [output / MEAN_SECONDS, prompts / MEAN_SECONDS];
}

function drawRate(canvas, tokens, now) {
  const present = Math.floor(now);
  const past = tokens.filter(([second]) => second >= present - LINE_SECONDS && second < present);
  const largest = Math.max(1, ...past.map(([, generated]) => generated));
  setAttribute(canvas, "aria-label", `Output in the last 2 minutes: at most ${count(largest)} tokens in a second.`);
  const drawing = prepare(canvas);
  if (!drawing) return;
  const { context, width, height } = drawing;
  const column = width / LINE_SECONDS;
  context.fillStyle = palette().decode;
  for (const [second, generated] of past) {
    const tall = Math.max(1, (generated / largest) * (height - 2));
    context.fillRect((second - present + LINE_SECONDS) * column, height - 1 - tall, Math.max(1, column - 1), tall);
  }
  context.fillStyle = palette().line;
  context.fillRect(0, height - 1, width, 1);
}
