// The plots: profile, frontier, widths, merges and learning curves.

// -- profile ------------------------------------------------------------------------------

const drawProfile = () => {
  const { svg, width, height } = frame($("profile"), 270);
  const top = 10, bottom = height - 40, right = width - 10;
  const most = Math.max(data.n_live, 2);
  const ticks = logTicks(1, most, 6).filter((v) => v === Math.round(v));
  const left = 14 + 7.2 * Math.max(...ticks.map((v) => short(v).length));
  const y = (k) => bottom - (bottom - top - 6) * Math.log(k) / Math.log(most);
  const at = tauAxis(svg, whole, left, right, bottom, top);
  for (const v of ticks) {
    add(svg, "line", { x1: left, x2: right, y1: y(v), y2: y(v), class: "grid" });
    add(svg, "text", { x: left - 8, y: y(v) + 4, "text-anchor": "end" }, short(v));
  }
  let shade = "";
  let last = -1;
  for (const { low, high } of profile.intervals) {
    const x0 = Math.max(at(low), last), x1 = high === null ? right : at(high);
    if (x1 - x0 < 0.05) continue;
    shade += `M${x0.toFixed(2)} ${top}H${x1.toFixed(2)}V${bottom}H${x0.toFixed(2)}Z`;
    last = x1;
  }
  add(svg, "path", { d: shade || "M0 0", class: "shade" });
  for (const name of ["upper", "lower"]) {
    const breaks = profile.tau, counts = profile[name];
    let path = `M${left} ${y(counts[0]).toFixed(1)}`;
    let drawnX = left;
    for (let k = 1; k < breaks.length; k++) {
      // Steps closer than half a pixel look like one.
      if (k < breaks.length - 1 && at(breaks[k + 1]) - drawnX < 0.5) continue;
      drawnX = at(breaks[k]);
      path += `H${drawnX.toFixed(1)}V${y(counts[k]).toFixed(1)}`;
    }
    add(svg, "path", { d: `${path}H${right}`, class: name });
  }
  markTau(svg, whole, at, top, bottom);
  clickable(svg, whole, left, right);
};

// -- value against clusters ---------------------------------------------------------------

const SHAPES = {
  kept: "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",
  nothing: "M-4.5 -4H4.5L0 4.5Z",
  lost: "M-3 -3H3V3H-3Z",
  own: "M0 -9L2.6 -3.2L8.6 -2.8L4 1.2L5.5 7.3L0 4L-5.5 7.3L-4 1.2L-8.6 -2.8L-2.6 -3.2Z",
  keep: "M-8 0H8",
};
const stamp = (parent, kind, x, y, extra = "") => add(parent, "path", {
  d: SHAPES[kind], class: `${kind} ${extra}`.trim(), transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`,
});
const drawFrontier = () => {
  const legend = $("frontier-legend");
  legend.replaceChildren();
  if (!marks.length) { $("frontier").replaceChildren(); return; }
  $("frontier-hint").textContent = "Click to go to a point.";
  const { svg, width, height } = frame($("frontier"), 290);
  const { worst, is_log: isLog } = data.frontier;
  const lossTicks = linearTicks(0, worst, 4);
  const left = 44, right = width - 16 - 7 * Math.max(...lossTicks.map((v) => short(v).length));
  const top = 26, bottom = height - 40;
  const counts = marks.map((m) => m.n_clusters);
  const low = Math.min(...counts), high = Math.max(...counts);
  const room = isLog ? 0 : Math.max((high - low) * 0.04, 0.5);
  const first = isLog ? low / 1.2 : low - room, last = isLog ? high * 1.2 : high + room;
  const x = (n) => left + (right - left) * (isLog ? Math.log(n / first) / Math.log(last / first) : (n - first) / (last - first));
  const y = (percent) => bottom - (bottom - top) * percent / 100;
  const yLoss = (loss) => bottom - (bottom - top) * loss / worst;
  for (const v of [0, 25, 50, 75, 100]) {
    add(svg, "line", { x1: left, x2: right, y1: y(v), y2: y(v), class: "grid" });
    add(svg, "text", { x: left - 8, y: y(v) + 4, "text-anchor": "end", class: "kept-axis" }, `${v}%`);
  }
  for (const v of lossTicks) {
    add(svg, "text", { x: right + 10, y: yLoss(v) + 4, class: "lost-axis" }, short(v));
  }
  add(svg, "text", { x: 0, y: 12, class: "kept-axis" }, "retained");
  add(svg, "text", { x: width, y: 12, "text-anchor": "end", class: "lost-axis" }, "lost");
  let free = left - 20;
  const most = Math.max((right - left) / 60, 2);
  const ticks = (isLog ? logTicks(first, last, most) : linearTicks(first, last, most));
  for (const v of ticks.filter((n) => n === Math.round(n) && n > 0)) {
    const half = short(v).length * 3.6;
    if (x(v) - half < free) continue;
    free = x(v) + half + 8;
    add(svg, "text", { x: x(v), y: bottom + 17, "text-anchor": "middle" }, short(v));
  }
  add(svg, "line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" });
  add(svg, "text", { x: right, y: bottom + 34, "text-anchor": "end" }, "clusters");
  const { keep, max_loss: maxLoss } = data.frontier;
  const bar = keep === null ? yLoss(maxLoss) : y(keep);
  add(svg, "line", { x1: left, x2: right, y1: bar, y2: bar, class: "keep" });
  const now = add(svg, "line", { y1: top, y2: bottom, class: "marker" });
  for (const m of marks) stamp(svg, "lost", x(m.n_clusters), yLoss(m.loss));
  for (const m of marks) if (!m.is_own) stamp(svg, m.is_proven ? "kept" : "nothing", x(m.n_clusters), y(m.percent));
  const own = marks.find((m) => m.is_own);
  if (own) stamp(svg, "own", x(own.n_clusters), y(own.percent), own.is_worth ? "" : "poor");
  const ring = add(svg, "circle", { r: 8, class: "ring" });
  markers.push(() => {
    const here = judge(tau), m = markAt(tau);
    const isVisible = here.state === "certified" && here.upper >= first && here.upper <= last;
    now.setAttribute("visibility", isVisible ? "visible" : "hidden");
    ring.setAttribute("visibility", isVisible && m ? "visible" : "hidden");
    if (!isVisible) return;
    for (const end of ["x1", "x2"]) now.setAttribute(end, x(here.upper).toFixed(1));
    if (!m) return;
    ring.setAttribute("cx", x(m.n_clusters).toFixed(1));
    ring.setAttribute("cy", y(m.percent).toFixed(1));
  });
  svg.addEventListener("click", (event) => {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const at = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    const away = (m) => Math.hypot(x(m.n_clusters) - at[0], (y(m.percent) - at[1]) / 4);
    setTau(inside(marks.reduce((a, b) => (away(b) < away(a) ? b : a))));
  });
  for (const [kind, words, isThere] of [
    ["kept", "achievable return retained, at least", true],
    ["nothing", "below the baseline, or nothing proven", marks.some((m) => !m.is_proven)],
    ["lost", "loss in any state, at most", true],
    ["own", "chosen", Boolean(own)],
    ["keep", data.frontier.requested, true],
  ]) {
    if (!isThere) continue;
    const item = document.createElement("li");
    const swatch = add(item, "svg", { viewBox: "-10 -10 20 20", "aria-hidden": "true" });
    stamp(swatch, kind, 0, 0, kind === "own" && !own.is_worth ? "poor" : "");
    item.append(words);
    legend.append(item);
  }
};

// -- histograms ---------------------------------------------------------------------------

const drawWidths = () => {
  const home = $("histograms");
  home.replaceChildren();
  const later = []; // boxes have their widths once all of them are there
  const { groups, scale } = data.widths;
  // Bins are equally wide: a logarithmic scale has a linear part at its left, as in figures.py.
  const limit = scale.is_log ? 10 ** Math.floor(Math.log10(scale.low)) : scale.right;
  const decades = (v) => (v <= limit ? 0.7 / 0.9 * v / limit : 0.7 / 0.9 + Math.log10(v / limit));
  const along = (v) => decades(v) / decades(scale.right);
  for (const group of groups) {
    const box = document.createElement("div");
    const head = document.createElement("h3");
    const name = groups.length === 1 ? "all" : group.name;
    head.textContent = `${name[0].toUpperCase()}${name.slice(1)} pairs`;
    const plot = document.createElement("div");
    plot.className = "plot";
    const note = document.createElement("p");
    note.className = "note";
    const sample = group.n_sampled < group.n_pairs ? `A sample of ${count(group.n_sampled)} of ` : "";
    note.textContent = `${sample}${plural(group.n_pairs, "pair")}` + (group.largest === 0
      ? ": all bounds are exact." : `. Median width ${short(group.median)}, largest ${short(group.largest)}.`);
    box.append(head, plot, note);
    home.append(box);
    if (group.largest !== 0) later.push([group, plot, note]);
  }
  if (!groups.length) home.textContent = "There is no pair of states.";
  for (const [group, plot, note] of later) {
    const { svg, width, height } = frame(plot, 190);
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", `Histogram of widths. ${note.textContent}`);
    const left = 46, right = width - 12, top = 8, bottom = height - 38;
    const { shares } = group;
    const most = Math.max(...shares);
    const y = (v) => bottom - (bottom - top) * v / most;
    for (const v of linearTicks(0, most, 4)) {
      add(svg, "line", { x1: left, x2: right, y1: y(v), y2: y(v), class: "grid" });
      add(svg, "text", { x: left - 8, y: y(v) + 4, "text-anchor": "end" }, `${short(v * 100)}%`);
    }
    const wide = (right - left) / shares.length;
    shares.forEach((v, k) => {
      if (!v) return;
      const h = Math.max(bottom - y(v), 1.5); // a rare width is still to be seen
      add(svg, "rect", { x: left + k * wide + 0.5, y: bottom - h, width: Math.max(wide - 1, 1), height: h, class: "bin" });
    });
    add(svg, "line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" });
    const ticks = scale.is_log ? [0, ...logTicks(limit, scale.right, 4)] : linearTicks(0, scale.right, 4);
    for (const v of ticks) {
      const x = left + (right - left) * along(v);
      add(svg, "text", { x, y: bottom + 16, "text-anchor": x > right - 20 ? "end" : "middle" }, short(v));
    }
    add(svg, "text", { x: right, y: bottom + 34, "text-anchor": "end" }, "upper minus lower bound");
  }
};

// -- merges -------------------------------------------------------------------------------

const drawTree = () => {
  if (!tree) return;
  const { leaves, nodes } = tree, k = leaves.length;
  const step = Math.min(26, Math.max(15, 420 / k));
  const height = Math.round(14 + k * step + 44);
  const { svg, width } = frame($("tree"), height);
  const like = width < 560 ? "× like" : "states like";
  const called = (leaf) => leaf.name && width >= 560 ? ` (${leaf.short})` : "";
  const names = leaves.map((leaf) => leaf.size === 0 ? "the end" : (leaf.size === 1
    ? `state ${leaf.state}` : `${count(leaf.size)} ${like} ${leaf.state}`) + called(leaf));
  const left = 30 + 6.6 * Math.max(...names.map((name) => name.length));
  const right = width - 10, top = 8, bottom = height - 40;
  const scale = makeScale(tree.left || tree.right / 100, tree.right, tree.left === 0);
  const at = tauAxis(svg, scale, left, right, bottom, top);
  const y = (row) => top + (row + 0.5) * step;
  leaves.forEach((leaf, i) => {
    const h = y(nodes[i].row);
    if (leaf.drawn !== null) add(svg, "rect", { x: 2, y: h - 5, width: 10, height: 10, rx: 2, fill: colour(leaf.drawn) });
    const label = add(svg, "text", { x: 18, y: h + 4, class: "strong" }, names[i]);
    if (leaf.name) add(label, "title", {}, leaf.name);
    add(svg, "line", { x1: left - 8, x2: left, y1: h, y2: h, class: "leader" });
  });
  for (const node of nodes) {
    const x0 = at(node.begin), x1 = node.end === null ? right : at(node.end), h = y(node.row);
    add(svg, "path", { d: `M${x0.toFixed(1)} ${h.toFixed(1)}H${x1.toFixed(1)}`, class: "branch" });
    if (!node.children.length) continue;
    const a = y(node.first) - 3, b = y(node.last) + 3, start = at(node.start);
    if (x0 - start >= 2) {
      const band = add(svg, "rect", { x: start, y: a, width: x0 - start, height: b - a, class: "band" });
      add(band, "title", {}, `${plural(node.children.length, "cluster")} merge between tau ${roundedDown(node.start)} and ${roundedUp(node.begin)}`);
    }
    add(svg, "line", { x1: x0, x2: x0, y1: a, y2: b, class: "band-edge" });
  }
  markTau(svg, scale, at, top, bottom);
  clickable(svg, scale, left, right);
};

// -- learning curves ----------------------------------------------------------------------

const DASHES = ["", "7 4", "2 3", "10 3 2 3", "4 2", "1 4"];
const ink = (k) => `stroke:var(--c${k % 6});stroke-dasharray:${DASHES[k % 6] || "none"}`;
const drawCurves = () => {
  if (!data.curves.length) return;
  const { svg, width, height } = frame($("curves"), Math.min(Math.max($("curves").clientWidth * 0.78, 260), 400));
  const known = data.curves.flatMap((c) => [...c.low, ...c.high]).filter((v) => v !== null);
  const last = Math.max(1, ...data.curves.flatMap((c) => c.steps));
  let low = Math.min(0, ...known), high = Math.max(1, ...known);
  // One point far below would press all others together.
  low = Math.max(low, high - 4 * Math.max(high, 1));
  const left = 46, right = width - 14, top = 10, bottom = height - 38;
  const x = (v) => left + (right - left) * v / last;
  const y = (v) => bottom - (bottom - top) * (Math.max(v, low) - low) / (high - low);
  for (const v of linearTicks(low, high, 5)) {
    add(svg, "line", { x1: left, x2: right, y1: y(v), y2: y(v), class: "grid" });
    add(svg, "text", { x: left - 8, y: y(v) + 4, "text-anchor": "end" }, short(v));
  }
  for (const v of linearTicks(0, last, Math.max(2, Math.min(5, width / 90)))) {
    const anchor = x(v) > right - 16 ? "end" : "middle";
    add(svg, "text", { x: x(v), y: bottom + 16, "text-anchor": anchor }, short(v));
  }
  add(svg, "line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" });
  add(svg, "text", { x: right, y: bottom + 34, "text-anchor": "end" }, "environment steps");
  add(svg, "text", { x: left, y: bottom + 34 }, `up: ${width - 7 * data.measure.length > 200 ? data.measure : "score"}`);
  const legend = $("curves-legend");
  legend.replaceChildren();
  data.curves.forEach((curve, k) => {
    const ok = curve.steps.map((_, i) => i).filter((i) => curve.median[i] !== null);
    const path = (values, indices) => indices.map((i) => `${x(curve.steps[i]).toFixed(1)} ${y(values[i]).toFixed(1)}`).join("L");
    if (ok.length) {
      const back = [...ok].reverse();
      add(svg, "path", { d: `M${path(curve.low, ok)}L${path(curve.high, back)}Z`, style: `fill:var(--c${k % 6});fill-opacity:.15` });
      add(svg, "path", { d: `M${path(curve.median, ok)}`, style: `${ink(k)};fill:none;stroke-width:2` });
      if (ok.length === 1) add(svg, "circle", { cx: x(curve.steps[ok[0]]), cy: y(curve.median[ok[0]]), r: 3, style: `fill:var(--c${k % 6})` });
    }
    const item = document.createElement("li");
    const swatch = add(item, "svg", { viewBox: "0 0 26 8", "aria-hidden": "true" });
    add(swatch, "path", { d: "M0 4H26", style: `${ink(k)};fill:none;stroke-width:3` });
    item.append(`${curve.name} (${plural(curve.seeds, "seed")})`);
    legend.append(item);
  });
};
