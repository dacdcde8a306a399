// Canvases that are as sharp as the screen, in the colours of the style sheet.

let colours = null;

/** Return the style sheet's colours and the hatches made of them; they are read anew when the scheme changes. */
export function palette() {
  if (!colours) {
    const style = getComputedStyle(document.documentElement);
    colours = new Proxy({}, { get: (read, name) => (read[name] = read[name] || style.getPropertyValue(`--${name}`).trim()) });
  }
  return colours;
}

/** Forget the colours, since others hold now. */
export function forgetPalette() {
  colours = null;
  hatches.clear();
}

/** Return a context for drawing on a canvas as large as it is shown, in CSS pixels, cleared; null while it is not. */
export function prepare(canvas) {
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (!width || !height) return null;
  const scale = window.devicePixelRatio || 1;
  const [columns, rows] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== columns || canvas.height !== rows) {
    canvas.width = columns;
    canvas.height = rows;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

const hatches = new Map();

/** Return a pattern of strokes or dots in a colour, for what must not be told by its colour alone. */
export function hatch(context, colour, kind) {
  const name = `${kind} ${colour}`;
  if (!hatches.has(name)) hatches.set(name, context.createPattern(tile(colour, kind), "repeat"));
  return hatches.get(name);
}

function tile(colour, kind) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 4;
  const context = canvas.getContext("2d");
  context.fillStyle = context.strokeStyle = colour;
  if (kind === "dots") {
    context.fillRect(1, 1, 2, 2);
    return canvas;
  }
  context.lineWidth = 1.4;
  context.beginPath();
  for (const offset of [-4, 0, 4]) {
    context.moveTo(offset - 1, 5);
    context.lineTo(offset + 5, -1);
  }
  context.stroke();
  return canvas;
}
