// What the tables of requests have in common.

import { make, setAttribute, setText } from "./dom.js";
import { shortId } from "./format.js";

/** Return a cell with a level: its number, which is its rank, and its name. */
export function levelCell() {
  return make("td", "level-cell", levelMark());
}

/** Return a mark for a level. */
export function levelMark() {
  return make("span", "level", make("b"), make("span", "level-name"));
}

/** Show a level in its mark. */
export function setLevel(mark, store, level) {
  const [number, name] = mark.children;
  setAttribute(mark, "data-level", String(level));
  setText(number, String(level));
  setText(name, store.levelName(level));
}

/** Return a cell with a button that opens the request of that id. */
export function requestCell(id, open) {
  const button = make("button", "request", shortId(id));
  button.type = "button";
  button.title = id;
  button.addEventListener("click", () => open(id));
  const cell = make("th", "", button);
  cell.scope = "row";
  return cell;
}

/** Return a row for a request: its level, a button, its tenant, then as many empty cells as `classes` names. */
export function requestRow(id, open, classes) {
  return make("tr", "", levelCell(), requestCell(id, open), make("td", "tenant"), ...classes.map((one) => make("td", one)));
}

/** Bring the first cells of a request's row up to date, and the texts of the others. */
export function updateRow(row, store, request, texts) {
  const cells = row.children;
  setLevel(cells[0].firstElementChild, store, request.level);
  setText(cells[2], request.tenant || "");
  texts.forEach((text, index) => {
    if (text !== null) setText(cells[3 + index], text);
  });
}
