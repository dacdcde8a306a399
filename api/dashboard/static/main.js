// The page: follows the server, and draws what it tells.

import { forgetPalette } from "./canvas.js";
import { ServerClock } from "./clock.js";
import { CONNECTING, Connection, LIVE, LOCKED } from "./connection.js";
import { byId, setHidden, setText } from "./dom.js";
import { count, duration } from "./format.js";
import { renderLatency } from "./latency.js";
import { Life } from "./life.js";
import { Memory } from "./memory.js";
import { Queue } from "./queue.js";
import { renderReadouts, total } from "./readouts.js";
import { Requests } from "./requests.js";
import { Store } from "./store.js";
import { Timeline } from "./timeline.js";

const KEY = `llamalane key for ${location.pathname}`;
const QUIET_SECONDS = 1;
/** So often does the page move on while nothing is told; it is drawn anew with each message besides. */

const calm = matchMedia("(prefers-reduced-motion: reduce)");
const store = new Store();
const clock = new ServerClock();
const open = (id) => life.open(id, store, now());
const life = new Life(ask);
const timeline = new Timeline(open);
const views = [timeline, new Requests(open), new Queue(open), new Memory(open), life];
const connection = new Connection("dashboard/events", { onMessage: take, onState: showState, key: readKey });

let [drawn, frame, timer, retryAt, live] = [-Infinity, 0, 0, null, false];

/** Return the server's time; while nothing is heard of it, the time stands still. */
function now() {
  return clock.timeAt(live ? performance.now() : connection.heard);
}

function take(message) {
  if (store.apply(message)) clock.reset();
  clock.observe(message.time);
  draw();
}

/** Draw in the next frame; for those who want little motion, once a second. */
function draw() {
  clearTimeout(timer);
  const pause = calm.matches ? Math.max(0, 1000 * QUIET_SECONDS - (performance.now() - drawn)) : 0;
  if (pause > 0) timer = setTimeout(draw, pause);
  else if (!frame) frame = requestAnimationFrame(render);
}

function render() {
  frame = 0;
  drawn = performance.now();
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(draw, 1000 * QUIET_SECONDS);
  showPause();
  if (!store.state) return;
  const time = now();
  renderReadouts(store, time);
  renderLatency(store);
  for (const view of views) view.render(store, time);
  document.body.classList.toggle("with-tenants", store.fixed.showsAll && hasTenants());
  setText(byId("model"), store.fixed.model);
  setText(byId("foot"), `Up for ${duration(time - store.started)} · up to ${count(store.fixed.limit)} tokens in a sequence`);
  const told = `${total(store.state.running)} running, ${total(store.state.waiting)} waiting`;
  document.title = `${told} – llamalane`;
}

function hasTenants() {
  for (const requests of [store.live, store.ended]) for (const one of requests.values()) if (one.tenant) return true;
  return false;
}

function showState(state, reason, pause) {
  const box = byId("connection");
  live = state === LIVE;
  retryAt = pause === undefined ? null : performance.now() + 1000 * pause;
  const ready = state === LIVE && store.state ? store.state.state : state;
  if (box.dataset.state !== ready) box.dataset.state = ready;
  if (state === LIVE) setText(byId("connection-text"), ready === "ready" ? "Live" : "Draining: takes no new requests");
  else if (state === LOCKED) setText(byId("connection-text"), "A key is needed");
  else setText(byId("connection-text"), state === CONNECTING ? "Connecting" : `Disconnected. ${reason}`);
  setHidden(byId("retry"), retryAt === null);
  setHidden(byId("forget-key"), !readKey() || state === LOCKED);
  setHidden(byId("key-section"), state !== LOCKED);
  setHidden(byId("board"), !store.state || state === LOCKED);
  setHidden(byId("foot"), byId("board").hidden);
  document.body.classList.toggle("stale", state !== LIVE);
  if (state === LOCKED) askForKey(reason);
  if (state !== LIVE) draw();
}

function showPause() {
  if (retryAt !== null) {
    const seconds = Math.max(0, Math.ceil((retryAt - performance.now()) / 1000));
    setText(byId("retry"), `Try now (again in ${seconds} s)`);
  }
}

function askForKey(reason) {
  setText(byId("key-error"), reason);
  byId("key-input").value = "";
  byId("key-input").focus();
}

function readKey() {
  return sessionStorage.getItem(KEY);
}

function keepKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

async function ask(id) {
  const path = `dashboard/explanations/${id.split("/").map(encodeURIComponent).join("/")}`;
  const key = readKey();
  try {
    const response = await fetch(path, { headers: key ? { Authorization: `Bearer ${key}` } : {}, cache: "no-store" });
    return response.ok ? await response.json() : null;
  } catch (error) {
    return null; // the connection will say so
  }
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = byId("key-input").value.trim();
  if (!/^[\x20-\x7e\xa1-\xff]+$/.test(key)) return askForKey("No key has such characters.");
  keepKey(key);
  return connection.start();
});
byId("forget-key").addEventListener("click", () => {
  keepKey(null);
  store.reset();
  connection.start();
});
byId("retry").addEventListener("click", () => connection.start());
for (const choice of document.querySelectorAll("input[name=span]")) {
  choice.addEventListener("change", () => {
    timeline.span = Number(choice.value);
    draw();
  });
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  forgetPalette();
  draw();
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) connection.stop();
  else connection.start();
});
addEventListener("resize", draw);
connection.start();
