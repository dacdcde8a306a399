// How long the first token takes, and how long the next one, at each level.

import { byId, keepList, make, setAttribute, setText } from "./dom.js";
import { count, duration } from "./format.js";
import { levelMark, setLevel } from "./rows.js";

const [SHORTEST, LONGEST] = [0.001, 100];

/** Bring both tables up to date. */
export function renderLatency(store) {
  const named = new Set(store.fixed.levels.map((one) => one.level));
  const levels = store.state.latency.filter((one) => named.has(one.level) || one.first_token.count || one.gap.count);
  renderTable("first-token-rows", store, levels, ({ first_token: times }) => [times, null, count(times.count)]);
  renderTable("gap-rows", store, levels, ({ gap, target }) => [gap, target, `≤ ${duration(target)}`]);
}

function renderTable(id, store, levels, read) {
  keepList(
    byId(id),
    levels,
    (one) => one.level,
    create,
    (row, one) => update(row, store, one.level, ...read(one)),
  );
}

function create() {
  const head = make("th", "level-cell", levelMark());
  head.scope = "row";
  const range = make("span", "range", make("i", "line"), make("i", "middle"), make("i", "goal"));
  const numbers = [0, 1, 2].map(() => make("td", "number"));
  return make("tr", "", head, make("td", "range", range), ...numbers, make("td", "number optional"));
}

function update(row, store, level, { values }, target, last) {
  const [head, range, ...cells] = row.children;
  setLevel(head.firstElementChild, store, level);
  [0, 1, 2].forEach((index) => setText(cells[index], duration(values.length ? values[index] : null)));
  setText(cells[3], last);
  const late = target !== null && values.length > 0 && values[1] > target;
  setAttribute(row, "data-late", late ? "true" : null);
  setAttribute(cells[1], "title", late ? "over the target" : null);
  place(range.firstElementChild, values, target);
}

/** A line from the median to the 99th percentile, on a logarithmic scale, with a tick at the target. */
function place(range, values, target) {
  const [line, middle, goal] = range.children;
  line.hidden = middle.hidden = values.length === 0;
  goal.hidden = target === null;
  if (target !== null) goal.style.left = `${placeOf(target)}%`;
  if (!values.length) return;
  const [from, to] = [placeOf(values[0]), placeOf(values[2])];
  line.style.left = middle.style.left = `${from}%`;
  line.style.width = `${to - from}%`;
}

function placeOf(seconds) {
  const place = Math.log(Math.max(seconds, SHORTEST) / SHORTEST) / Math.log(LONGEST / SHORTEST);
  return Math.round(1000 * Math.min(1, place)) / 10;
}
