// States on a canvas, and what the pointer finds there.

// -- states on a canvas -------------------------------------------------------------------

const prepare = (canvas, width, height) => {
  const ratio = window.devicePixelRatio || 1;
  const w = Math.max(1, Math.round(width * ratio)), h = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, w, h);
  return { context, ratio };
};

const { is_grid: isGrid, x: xs, y: ys, size, heads, sides, panels, letters } = data.map;
const cells = new Map(); // of a grid: the drawn state in each
if (isGrid) xs.forEach((x, s) => { if (x !== null) cells.set(ys[s] * size[0] + x, s); });
const anyPlace = xs.some((x) => x !== null);
let layout = { cell: 1, width: 1, height: 1 };

const layoutMap = () => {
  const room = $("map").parentElement.clientWidth;
  if (isGrid) {
    // Captions of panels stand above and beside the cells.
    const left = sides.length ? 20 : 0, top = heads.length || panels.length ? 20 : 0;
    const tallest = Math.max(420, Math.min(window.innerHeight * 0.95, 760));
    let cell = Math.min((room - left) / size[0], (tallest - top) / size[1], 120);
    // Whole pixels look sharper, where there are enough of them.
    const ratio = window.devicePixelRatio || 1;
    if (cell * ratio >= 3) cell = Math.floor(cell * ratio) / ratio;
    layout = { cell, left, top, width: left + cell * size[0], height: top + cell * size[1] };
  } else layout = layoutPoints(data.map, room);
};
const layoutPoints = (points, room) => {
  const pad = 12, wide = room - 2 * pad;
  const height = Math.min(Math.max(wide * points.size[1] / Math.max(points.size[0], 1e-9), 160), Math.min(room, 560));
  const scale = Math.min(wide / Math.max(points.size[0], 1e-9), (height) / Math.max(points.size[1], 1e-9));
  const left = (room - scale * points.size[0]) / 2;
  const full = height + 2 * pad;
  const top = (full - scale * points.size[1]) / 2;
  const n = points.x.length;
  return { width: room, height: full, scale, left, top, radius: n > 5000 ? 1.6 : n > 500 ? 2.6 : 4.5 };
};

const drawGrid = () => {
  const { context: c, ratio } = prepare($("map"), layout.width, layout.height);
  const side = layout.cell * ratio;
  const alone = style("--alone");
  const lit = pointed >= 0 ? labels[pointed] : -1;
  c.translate(Math.round(layout.left * ratio), Math.round(layout.top * ratio));
  c.fillStyle = style("--page");
  for (const [x, y, wide, tall] of panels) c.fillRect(x * side, y * side, wide * side, tall * side);
  for (const s of cells.values()) {
    const x0 = Math.round(xs[s] * side), y0 = Math.round(ys[s] * side);
    c.fillStyle = paint(s, alone);
    c.globalAlpha = lit < 0 || labels[s] === lit ? 1 : 0.35;
    c.fillRect(x0, y0, Math.max(Math.round((xs[s] + 1) * side) - x0, 1), Math.max(Math.round((ys[s] + 1) * side) - y0, 1));
  }
  c.globalAlpha = 1;
  writeOnGrid(c, ratio, side);
  if (layout.cell < 5) { outline(c, ratio, side); return; }
  c.strokeStyle = style("--wall");
  c.lineWidth = Math.max(1, Math.round((layout.cell >= 9 ? 1.5 : 1) * ratio));
  c.beginPath();
  for (const [key, s] of cells) {
    const x = xs[s], y = ys[s];
    const east = x + 1 < size[0] ? cells.get(key + 1) : undefined;
    const south = cells.get(key + size[0]);
    if (east !== undefined && labels[east] !== labels[s]) {
      c.moveTo(Math.round((x + 1) * side), Math.round(y * side));
      c.lineTo(Math.round((x + 1) * side), Math.round((y + 1) * side));
    }
    if (south !== undefined && labels[south] !== labels[s]) {
      c.moveTo(Math.round(x * side), Math.round((y + 1) * side));
      c.lineTo(Math.round((x + 1) * side), Math.round((y + 1) * side));
    }
  }
  c.stroke();
  outline(c, ratio, side);
};
// The clusters that are chosen: the second one dashed.
const outline = (c, ratio, side) => {
  chosen.forEach((s, k) => {
    if (s < 0) return;
    c.beginPath();
    for (const t of cells.values()) {
      if (labels[t] !== labels[s]) continue;
      const x = xs[t], y = ys[t];
      for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
        const isInside = x + dx >= 0 && x + dx < size[0];
        const beside = isInside ? cells.get((y + dy) * size[0] + x + dx) : undefined;
        if (beside !== undefined && labels[beside] === labels[s]) continue;
        const x0 = x + (dx > 0 ? 1 : 0), y0 = y + (dy > 0 ? 1 : 0);
        c.moveTo(Math.round(x0 * side), Math.round(y0 * side));
        c.lineTo(Math.round((x0 + (dy ? 1 : 0)) * side), Math.round((y0 + (dx ? 1 : 0)) * side));
      }
    }
    c.setLineDash(k ? [5 * ratio, 4 * ratio] : []);
    // Dark on light and light on dark, whatever the colour below.
    for (const [ink, wide] of [["--card", 6], ["--ink", 3]]) {
      c.strokeStyle = style(ink);
      c.lineWidth = wide * ratio * (layout.cell < 9 ? 0.6 : 1);
      c.stroke();
    }
    c.setLineDash([]);
  });
};
const fitted = (c, text, room) => { // what there is room for
  if (c.measureText(text).width <= room) return text;
  const word = text.slice(text.indexOf(" ") + 1); // the value, without the name of the variable
  if (c.measureText(word).width <= room) return word;
  let n = text.length;
  while (n > 0 && c.measureText(`${text.slice(0, n)}…`).width > room) n--;
  return n > 1 ? `${text.slice(0, n)}…` : "";
};
const writeOnGrid = (c, ratio, side) => {
  const font = getComputedStyle(document.body).fontFamily;
  c.textAlign = "center";
  c.textBaseline = "middle";
  c.fillStyle = style("--soft");
  c.font = `${11 * ratio}px ${font}`;
  for (const [column, columns, text] of heads) {
    c.fillText(fitted(c, text, columns * side), (column + columns / 2) * side, -11 * ratio);
  }
  for (const [row, rows, text] of sides) {
    c.save();
    c.translate(-11 * ratio, (row + rows / 2) * side);
    c.rotate(-Math.PI / 2);
    c.fillText(fitted(c, text, rows * side), 0, 0);
    c.restore();
  }
  c.textAlign = "left";
  panels.forEach(([x, y], k) => c.fillText(String(k + 1), x * side, y * side - 9 * ratio));
  if (layout.cell < 9) return;
  c.textAlign = "center";
  c.font = `600 ${Math.min(0.5 * layout.cell, 26) * ratio}px ${font}`;
  const ink = style("--ink");
  for (const [x, y, text] of letters) {
    const s = cells.get(y * size[0] + x);
    if (s === undefined) continue;
    c.fillStyle = isWhole && sizes[labels[s]] <= 1 ? ink : "#000"; // as cells are painted
    c.fillText(text, (x + 0.5) * side, (y + 0.53) * side);
  }
};
const drawPoints = (canvas, points, box) => {
  const { context: c, ratio } = prepare(canvas, box.width, box.height);
  const alone = style("--alone-point");
  const lit = pointed >= 0 ? labels[pointed] : -1;
  c.scale(ratio, ratio);
  for (let s = 0; s < drawn; s++) {
    if (points.x[s] === null) continue;
    c.fillStyle = paint(s, alone);
    c.globalAlpha = lit < 0 || labels[s] === lit ? 0.9 : 0.15;
    c.beginPath();
    c.arc(box.left + box.scale * points.x[s], box.top + box.scale * points.y[s], box.radius, 0, 7);
    c.fill();
  }
  c.globalAlpha = 1;
  c.strokeStyle = style("--ink");
  c.lineWidth = 1.5;
  chosen.forEach((one, k) => {
    if (one < 0) return;
    c.setLineDash(k ? [3, 2] : []);
    for (let s = 0; s < drawn; s++) {
      if (labels[s] !== labels[one] || points.x[s] === null) continue;
      c.beginPath();
      c.arc(box.left + box.scale * points.x[s], box.top + box.scale * points.y[s], box.radius + 2.5, 0, 7);
      c.stroke();
    }
    c.setLineDash([]);
  });
};
const drawMap = () => {
  if (isGrid) drawGrid(); else drawPoints($("map"), data.map, layout);
  if (data.embedding) {
    const room = $("embedding").parentElement.clientWidth;
    drawPoints($("embedding"), data.embedding, layoutPoints(data.embedding, room));
  }
};

const stateAt = (x, y) => {
  if (isGrid) {
    const column = Math.floor((x - layout.left) / layout.cell), row = Math.floor((y - layout.top) / layout.cell);
    if (row < 0 || column < 0 || column >= size[0]) return -1;
    return cells.get(row * size[0] + column) ?? -1;
  }
  let best = -1, near = 14 ** 2;
  for (let s = 0; s < drawn; s++) {
    if (xs[s] === null) continue;
    const d = (layout.left + layout.scale * xs[s] - x) ** 2 + (layout.top + layout.scale * ys[s] - y) ** 2;
    if (d < near) { near = d; best = s; }
  }
  return best;
};
const tipLines = (s) => {
  const state = stateOf(s), id = idOf(s), members = sizes[labels[s]];
  return [
    `state ${state}` + (id === state ? "" : id < 0 ? " (added)" : `, id ${id}`),
    ...(s !== end && nameOf(s) ? [nameOf(s)] : []),
    s === end ? "the end of episodes" : members === 1 && isWhole ? "alone in its cluster"
      : `cluster of ${plural(members, drawnWord)}`,
  ];
};
const point = (event) => {
  const canvas = $("map"), tip = $("tip");
  const box = canvas.getBoundingClientRect();
  const s = event ? stateAt(event.clientX - box.left, event.clientY - box.top) : -1;
  if (s !== pointed) { pointed = s; schedule(); }
  tip.hidden = s < 0;
  if (s < 0) return;
  tip.replaceChildren(...tipLines(s).map((text) => {
    const line = document.createElement("div");
    line.textContent = text;
    return line;
  }));
  const home = tip.parentElement.getBoundingClientRect();
  const x = event.clientX - home.left, y = event.clientY - home.top;
  tip.style.left = `${Math.min(Math.max(x + 12, 0), Math.max(home.width - tip.offsetWidth, 0))}px`;
  tip.style.top = `${y > tip.offsetHeight + 14 ? y - tip.offsetHeight - 10 : y + 18}px`;
};
$("map").addEventListener("pointermove", point);
$("map").addEventListener("pointerdown", point);
$("map").addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") point(null); });
document.addEventListener("pointerdown", (event) => { if (event.target !== $("map")) point(null); });
