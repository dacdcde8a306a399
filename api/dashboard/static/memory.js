// The KV cells of each lane: whose they are.

import { hatch, palette, prepare } from "./canvas.js";
import { byId, keepList, make, setAttribute, setText } from "./dom.js";
import { count, percent, shortId } from "./format.js";

const SQUARE = 9;
const GAP = 2;
const MOST_SQUARES = 420;
const USES = ["running", "paused", "kept"];

/** Draws the lanes' cells; `open` is called with the id of a request whose cells were clicked. */
export class Memory {
  constructor(open) {
    this._open = open;
    this._list = byId("regions");
    this._hits = new WeakMap();
  }

  /** Bring everything up to date. */
  render(store) {
    keepList(
      this._list,
      store.state.lanes,
      (lane) => lane.name,
      () => this._create(),
      (item, lane) => this._update(item, lane),
    );
  }

  _create() {
    const canvas = make("canvas", "cells");
    canvas.setAttribute("role", "img");
    canvas.addEventListener("click", (event) => this._click(canvas, event));
    const rows = make("tbody");
    const head = make("tr");
    for (const name of ["Use", "Request", "Cells"]) {
      const cell = make("th", name === "Cells" ? "number" : "", name);
      cell.scope = "col";
      head.append(cell);
    }
    const table = make("table", "", make("caption", "hidden", "Cells by sequence"), make("thead", "", head), rows);
    const details = make("details", "", make("summary", "", "By sequence"), table);
    return make("div", "region", make("h3"), make("p", "small"), canvas, details);
  }

  _update(item, lane) {
    const [name, numbers, canvas, details] = item.children;
    const totals = totalsOf(lane);
    setText(name, lane.name);
    const [unit, squares] = divide(lane);
    const each = unit === 1 ? "1 cell" : `${count(unit)} cells`;
    setText(numbers, `${describe(totals, lane.cells)}. Each square: ${each}`);
    setAttribute(canvas, "aria-label", `KV cells of lane ${lane.name}: ${describe(totals, lane.cells)}.`);
    this._hits.set(canvas, draw(canvas, squares));
    if (details.open) updateRows(details.querySelector("tbody"), lane, this._open);
  }

  _click(canvas, event) {
    const { squares, columns } = this._hits.get(canvas) || { squares: [], columns: 1 };
    const place = Math.floor(event.offsetY / (SQUARE + GAP)) * columns + Math.floor(event.offsetX / (SQUARE + GAP));
    if (squares[place] && squares[place].owner) this._open(squares[place].owner);
  }
}

function totalsOf(lane) {
  const totals = { running: 0, paused: 0, kept: 0 };
  for (const [use, cells] of lane.holdings) totals[use] += cells;
  return { ...totals, free: Math.max(0, lane.cells - totals.running - totals.paused - totals.kept) };
}

function describe(totals, cells) {
  return [...USES, "free"]
    .map((use) => `${count(totals[use])} ${use} (${percent(cells ? totals[use] / cells : 0)})`)
    .join(" · ");
}

/** Return how many cells a square stands for, and the squares; even a few cells are shown by one. */
function divide(lane) {
  let unit = 1;
  while (lane.cells / unit > MOST_SQUARES) unit *= 2;
  const all = Math.ceil(lane.cells / unit);
  const squares = [];
  let [before, turn] = [0, 0];
  for (const [use, cells, sequence, owner] of lane.holdings) {
    const end = Math.max(squares.length + 1, Math.round((before + cells) / unit));
    while (squares.length < Math.min(end, all)) squares.push({ use, together: sequence === null, owner, turn });
    before += cells;
    turn += 1;
  }
  while (squares.length < all) squares.push({ use: "free", together: false, owner: null, turn: 0 });
  return [unit, squares];
}

function draw(canvas, squares) {
  const columns = Math.max(8, Math.floor((canvas.clientWidth + GAP) / (SQUARE + GAP)));
  const height = `${Math.ceil(squares.length / columns) * (SQUARE + GAP)}px`;
  if (canvas.style.height !== height) canvas.style.height = height;
  const drawing = prepare(canvas);
  if (drawing) {
    squares.forEach((square, index) => {
      const [left, top] = [(index % columns) * (SQUARE + GAP), Math.floor(index / columns) * (SQUARE + GAP)];
      drawSquare(drawing.context, square, left, top);
    });
  }
  return { squares, columns };
}

/** Neighbours take turns in two tints; what several sequences hold together has a hole. */
function drawSquare(context, { use, together, turn }, left, top) {
  const colours = palette();
  if (use === "free") {
    context.strokeStyle = colours.line;
    context.strokeRect(left + 0.5, top + 0.5, SQUARE - 1, SQUARE - 1);
    return;
  }
  context.globalAlpha = turn % 2 ? 0.62 : 1;
  const colour = { running: colours.decode, paused: colours.paused, kept: colours.kept }[use];
  context.fillStyle = use === "running" ? colour : hatch(context, colour, use === "paused" ? "strokes" : "dots");
  context.fillRect(left, top, SQUARE, SQUARE);
  if (use !== "running") {
    context.strokeStyle = colour;
    context.strokeRect(left + 0.5, top + 0.5, SQUARE - 1, SQUARE - 1);
  }
  context.globalAlpha = 1;
  if (together) {
    context.fillStyle = colours.paper;
    context.fillRect(left + 3, top + 3, SQUARE - 6, SQUARE - 6);
  }
}

function updateRows(rows, lane, open) {
  keepList(
    rows,
    lane.holdings.slice(0, 64),
    ([use, , sequence, owner]) => `${use} ${sequence} ${owner}`,
    ([, , , owner]) => createRow(owner, open),
    (row, [use, cells, sequence, owner]) => {
      const [first, second, third] = row.children;
      setText(first, sequence === null ? use : `${use}, sequence ${sequence}`);
      if (owner === null) setText(second, sequence === null ? "several" : "–");
      setText(third, count(cells));
    },
  );
}

function createRow(owner, open) {
  const cell = make("td");
  if (owner !== null) {
    const button = make("button", "request", shortId(owner));
    button.type = "button";
    button.addEventListener("click", () => open(owner));
    cell.append(button);
  }
  return make("tr", "", make("td"), cell, make("td", "number"));
}
