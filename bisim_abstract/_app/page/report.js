"use strict";
// Draws the figures in the page's JSON, which have the fields of figures.py and maps.py.
// Text reaches the page through textContent only.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const arms = ["lower", "upper"];
  let tau = data.tau;
  let arm = "upper";
  let pointed = -1; // the drawn state under the pointer

  // -- numbers ------------------------------------------------------------------------------

  const count = (n) => n.toLocaleString("en-US");
  // The end of episodes is never counted as a cluster.
  const clusters = (n) => plural(n, "cluster") + (data.end === null ? "" : " and the end");
  const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
  const short = (v) => {
    if (v === 0) return "0";
    const size = Math.abs(v);
    if (size < 1e-300) return "almost 0";
    if (size < 1e-3 || size >= 1e7) return v.toExponential(2).replace(/\.?0*e\+?/, "e");
    return size >= 1000 ? count(Math.round(v)) : String(Number(v.toPrecision(4)));
  };

  // How many entries of a rising array are at most v.
  const rank = (values, v) => {
    let low = 0, high = values.length;
    while (low < high) {
      const mid = (low + high) >> 1;
      if (values[mid] <= v) low = mid + 1; else high = mid;
    }
    return low;
  };

  // -- clusterings --------------------------------------------------------------------------

  const drawn = data.map.x.length;
  const { profile, forests, tree } = data;
  const isExact = profile.tau.length === profile.n_steps;
  const countAt = (name, t) => profile[name][rank(profile.tau, t) - 1];

  // Sets of drawn states: each is named by its smallest member.
  const find = (parent, s) => {
    while (parent[s] !== s) { parent[s] = parent[parent[s]]; s = parent[s]; }
    return s;
  };
  const cluster = (name, t, target) => {
    const { tau: weights, edges, first, second } = forests[name];
    for (let s = 0; s < drawn; s++) target[s] = s;
    const n = edges.slice(0, rank(weights, t)).reduce((a, b) => a + b, 0);
    for (let k = 0; k < n; k++) {
      const a = find(target, first[k]), b = find(target, second[k]);
      if (a < b) target[b] = a; else target[a] = b;
    }
    for (let s = 0; s < drawn; s++) target[s] = find(target, s);
  };

  // The last states to lose their name, as tau grows, get the first colours: any few clusters
  // are then far apart in hue, and a cluster keeps its colour for as long as it has its name.
  const order = (() => {
    const { first, second } = forests.upper;
    const parent = new Int32Array(drawn).map((_, s) => s);
    const lost = [];
    for (let k = 0; k < first.length; k++) {
      const a = find(parent, first[k]), b = find(parent, second[k]);
      if (a === b) continue;
      const gone = Math.max(a, b);
      parent[gone] = Math.min(a, b);
      lost.push(gone);
    }
    const place = new Int32Array(drawn);
    let next = 0;
    for (let s = 0; s < drawn; s++) if (parent[s] === s) place[s] = next++;
    for (let k = lost.length - 1; k >= 0; k--) place[lost[k]] = next++;
    return place;
  })();

  const rgb = (L, C, h) => { // OKLCH to sRGB
    const a = C * Math.cos(h), b = C * Math.sin(h);
    const l = (L + 0.3963377774 * a + 0.2158037573 * b) ** 3;
    const m = (L - 0.1055613458 * a - 0.0638541728 * b) ** 3;
    const s = (L - 0.0894841775 * a - 1.291485548 * b) ** 3;
    const gamma = (v) => {
      const c = Math.min(Math.max(v, 0), 1);
      return Math.round(255 * (c <= 0.0031308 ? 12.92 * c : 1.055 * c ** (1 / 2.4) - 0.055));
    };
    const red = gamma(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s);
    const green = gamma(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s);
    const blue = gamma(-0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s);
    return `rgb(${red},${green},${blue})`;
  };
  const palette = new Map();
  const colour = (s) => {
    const k = order[s];
    if (!palette.has(k)) {
      const tier = [0.74, 0.62, 0.85, 0.68, 0.8][k % 5];
      const chroma = [0.13, 0.14, 0.1, 0.09, 0.13][(k >> 1) % 5];
      palette.set(k, rgb(tier, chroma, 0.6 + k * 2.399963));
    }
    return palette.get(k);
  };

  const labels = new Int32Array(drawn);
  const sizes = new Int32Array(drawn);
  const isWhole = data.map.states === null;
  const end = data.end === null ? -1 : isWhole ? data.end : data.map.states.indexOf(data.end);
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // Only where all states are drawn is a state that looks alone really alone.
  const paint = (s, alone) => (isWhole && sizes[labels[s]] <= 1 ? alone : colour(labels[s]));

  // -- verdict at tau -----------------------------------------------------------------------

  const lows = profile.intervals.map((i) => i.low);
  const isInside = (i, t) => i && (i.high === null || t < i.high);
  const intervalAt = (t) => {
    const k = rank(lows, t) - 1;
    return isInside(profile.intervals[k], t) ? k : -1;
  };
  const judge = (t) => {
    const interval = profile.intervals[intervalAt(t)];
    if (interval) {
      const n = interval.n_clusters;
      return { state: "certified", interval, isExact: true, lower: n, upper: n };
    }
    const isUnknown = !isExact && profile.intervals.length < profile.n_intervals;
    const agrees = isExact && profile.agrees[rank(profile.tau, t) - 1];
    const state = isUnknown ? "unknown" : agrees ? "certified" : "undecided";
    return { state, isExact, lower: countAt("lower", t), upper: countAt("upper", t) };
  };

  // -- value at tau -------------------------------------------------------------------------

  // Marks go from fine to coarse, so that their thresholds rise.
  const { marks } = data.frontier;
  const markLows = marks.map((m) => m.low);
  const markAt = (t) => {
    const m = marks[rank(markLows, t) - 1];
    return isInside(m, t) ? m : null;
  };

  // -- axes ---------------------------------------------------------------------------------

  const lo = profile.scale.low / 1.5, hi = profile.scale.right;
  // A logarithmic scale, with a part at its left for 0 and what is too small, if so wanted.
  const makeScale = (low, high, hasZero) => {
    const zero = hasZero ? 0.07 : 0, span = Math.log(high / low);
    return {
      low, high, hasZero,
      unit(t) {
        if (t < low) return hasZero && t > 0 ? zero * 0.5 : 0;
        return Math.min(zero + (1 - zero) * Math.log(t / low) / span, 1);
      },
      value(u) {
        if (hasZero && u < zero * 0.5) return 0;
        const v = low * Math.exp(span * Math.min(Math.max((u - zero) / (1 - zero), 0), 1));
        return Number(v.toPrecision(5));
      },
      holds: (t) => t <= high && (hasZero || t >= low),
    };
  };
  const whole = makeScale(lo, hi, true);
  const logTicks = (low, high, most) => {
    const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
    const found = [];
    if (last - first < 2) {
      for (let e = first - 1; e <= last; e++) {
        for (const m of [1, 2, 5]) found.push(Number(`${m}e${e}`));
      }
    } else {
      const skip = Math.ceil((last - first + 1) / most);
      for (let e = first; e <= last; e += skip) found.push(Number(`1e${e}`));
    }
    const inside = found.filter((v) => v >= low * 0.999999 && v <= high * 1.000001);
    return inside.length > 2 || high / low > 30 ? inside
      : linearTicks(low, high, most).filter((v) => v > 0);
  };
  const linearTicks = (low, high, most) => {
    const raw = (high - low) / most;
    const size = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * size).find((v) => v >= raw * 0.999);
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) {
      found.push(Number((k * step).toPrecision(10)));
    }
    return found;
  };

  const NS = "http://www.w3.org/2000/svg";
  const add = (parent, tag, attributes = {}, text) => {
    const node = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  };
  const frame = (box, height) => {
    box.replaceChildren();
    const width = Math.max(box.clientWidth, 120);
    const svg = add(box, "svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
    return { svg, width, height };
  };
  const tauAxis = (svg, scale, left, right, bottom, top) => {
    const at = (t) => left + (right - left) * scale.unit(t);
    if (scale.hasZero) add(svg, "text", { x: left, y: bottom + 17, "text-anchor": "middle" }, "0");
    let free = scale.hasZero ? left + 14 : 0;
    for (const t of logTicks(scale.low, scale.high, Math.max((right - left) / 60, 2))) {
      const x = at(t);
      const label = short(t);
      add(svg, "line", { x1: x, x2: x, y1: top, y2: bottom, class: "grid" });
      const half = label.length * 3.6;
      if (x - half < free || x + half > right + 10) continue;
      free = x + half + 8;
      add(svg, "text", { x, y: bottom + 17, "text-anchor": "middle" }, label);
    }
    add(svg, "line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" });
    add(svg, "text", { x: right, y: bottom + 34, "text-anchor": "end" }, "tau");
    return at;
  };

  const markers = [];
  const markTau = (svg, scale, at, top, bottom) => {
    const line = add(svg, "line", { y1: top, y2: bottom, class: "marker" });
    markers.push(() => {
      line.setAttribute("x1", at(tau));
      line.setAttribute("x2", at(tau));
      line.setAttribute("visibility", scale.holds(tau) ? "visible" : "hidden");
    });
  };
  const clickable = (svg, scale, left, right) => {
    svg.addEventListener("click", (event) => {
      const box = svg.getBoundingClientRect();
      const x = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
      setTau(scale.value((x - left) / (right - left)));
    });
  };

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
    const { svg, width, height } = frame($("frontier"), 250);
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
    add(svg, "text", { x: 0, y: 12, class: "kept-axis" }, "kept");
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
    const bar = y(data.frontier.keep);
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
      ["kept", "start value kept, at least", true],
      ["nothing", "nothing proven", marks.some((m) => !m.is_proven)],
      ["lost", "loss in any state, at most", true],
      ["own", "chosen", Boolean(own)],
      ["keep", `asked for: ${short(data.frontier.keep)}%`, true],
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
        add(band, "title", {}, `${plural(node.children.length, "cluster")} merge between tau ${short(node.start)} and ${short(node.begin)}`);
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
    add(svg, "text", { x: left, y: bottom + 34 }, "up: score");
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

  const { is_grid: isGrid, x: xs, y: ys, size } = data.map;
  const cells = new Map(); // of a grid: the drawn state in each
  if (isGrid) xs.forEach((x, s) => { if (x !== null) cells.set(ys[s] * size[0] + x, s); });
  const anyPlace = xs.some((x) => x !== null);
  let layout = { cell: 1, width: 1, height: 1 };

  const layoutMap = () => {
    const room = $("map").parentElement.clientWidth;
    if (isGrid) {
      const tallest = Math.max(420, Math.min(window.innerHeight * 0.85, 640));
      let cell = Math.min(room / size[0], tallest / size[1], 56);
      // Whole pixels look sharper, where there are enough of them.
      const ratio = window.devicePixelRatio || 1;
      if (cell * ratio >= 3) cell = Math.floor(cell * ratio) / ratio;
      layout = { cell, width: cell * size[0], height: cell * size[1] };
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
    const chosen = pointed >= 0 ? labels[pointed] : -1;
    for (const s of cells.values()) {
      const x0 = Math.round(xs[s] * side), y0 = Math.round(ys[s] * side);
      c.fillStyle = paint(s, alone);
      c.globalAlpha = chosen < 0 || labels[s] === chosen ? 1 : 0.35;
      c.fillRect(x0, y0, Math.max(Math.round((xs[s] + 1) * side) - x0, 1), Math.max(Math.round((ys[s] + 1) * side) - y0, 1));
    }
    c.globalAlpha = 1;
    if (layout.cell < 5) return;
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
  };
  const drawPoints = (canvas, points, box) => {
    const { context: c, ratio } = prepare(canvas, box.width, box.height);
    const alone = style("--alone-point");
    const chosen = pointed >= 0 ? labels[pointed] : -1;
    c.scale(ratio, ratio);
    for (let s = 0; s < drawn; s++) {
      if (points.x[s] === null) continue;
      c.fillStyle = paint(s, alone);
      c.globalAlpha = chosen < 0 || labels[s] === chosen ? 0.9 : 0.15;
      c.beginPath();
      c.arc(box.left + box.scale * points.x[s], box.top + box.scale * points.y[s], box.radius, 0, 7);
      c.fill();
    }
    c.globalAlpha = 1;
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
      const column = Math.floor(x / layout.cell), row = Math.floor(y / layout.cell);
      if (column < 0 || column >= size[0]) return -1;
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
  const point = (event) => {
    const canvas = $("map"), tip = $("tip");
    const box = canvas.getBoundingClientRect();
    const s = event ? stateAt(event.clientX - box.left, event.clientY - box.top) : -1;
    if (s !== pointed) { pointed = s; schedule(); }
    tip.hidden = s < 0;
    if (s < 0) return;
    const state = isWhole ? s : data.map.states[s];
    const id = data.map.ids ? data.map.ids[s] : state;
    const members = sizes[labels[s]];
    const lines = [
      `state ${state}` + (id === state ? "" : id < 0 ? " (added)" : `, id ${id}`),
      ...(data.map.names && s !== end && data.map.names[s] ? [data.map.names[s]] : []),
      s === end ? "the end of episodes" : members === 1 && isWhole ? "alone in its cluster"
        : `cluster of ${plural(members, isWhole ? "state" : "drawn state")}`,
    ];
    tip.replaceChildren(...lines.map((text) => {
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

  // -- the slider ---------------------------------------------------------------------------

  const slider = $("tau-slider"), field = $("tau");
  const TOP = Number(slider.max);
  const toSlider = (t) => {
    if (!(t > 0)) return 0;
    return Math.min(Math.max(Math.round(1 + (TOP - 1) * Math.log(t / lo) / Math.log(hi / lo)), 1), TOP);
  };
  const fromSlider = (p) => (p <= 0 ? 0 : Number((lo * (hi / lo) ** ((p - 1) / (TOP - 1))).toPrecision(5)));

  const inside = ({ low, high }) => { // a threshold well inside a certified range
    if (high === null) return low > 0 ? Number((low * 1.2).toPrecision(5)) : lo;
    if (low === 0 && high <= lo) return 0;
    const mid = Number(Math.sqrt(Math.max(low, Math.min(lo, high / 2)) * high).toPrecision(5));
    return mid >= low && mid < high ? mid : low;
  };
  const neighbour = (side) => {
    const at = intervalAt(tau);
    if (side < 0) return at >= 0 ? at - 1 : rank(lows, tau) - 1;
    const k = at >= 0 ? at + 1 : rank(lows, tau);
    return k < profile.intervals.length ? k : -1;
  };

  const tell = () => {
    const now = judge(tau);
    const about = now.isExact ? "" : "about ";
    $("now").dataset.state = now.state;
    const scope = data.scope === "all" ? "" : " over covered pairs";
    $("now-word").textContent = {
      certified: `Certified${scope}: ${clusters(now.upper)}`,
      undecided: `Not certified: ${about}${count(now.lower)} to ${clusters(now.upper)}`,
      unknown: "Not resolved on this page",
    }[now.state];
    let detail = "The two arms differ here; the truth lies between them.";
    if (now.state === "certified") {
      detail = "Both arms agree.";
      if (now.interval) {
        const { low, high } = now.interval;
        detail = `Both arms agree for tau from ${short(low)} ${high === null ? "on" : `to below ${short(high)}`}.`;
      }
      if (now.upper === data.n_live && data.n_live > 1) detail += " No states are merged.";
    } else if (now.state === "unknown") {
      detail = "Too many certified ranges to list them all; ask certificate.partitions(tau).";
    }
    $("now-detail").textContent = detail;
    const value = now.state === "certified" ? markAt(tau) : null;
    const none = { certified: "not evaluated", undecided: "not certified", unknown: "not known" }[now.state];
    $("now").dataset.worth = value ? (value.is_worth ? "useful" : "poor") : "none";
    $("kept").textContent = value ? value.kept_text : none;
    $("loss").textContent = value ? `at most ${value.loss_text}` : none;
    const worth = value ? `, keeps ${value.kept_text}` : "";
    for (const name of arms) $(`count-${name}`).textContent = about + count(now[name]);
    slider.setAttribute("aria-valuetext", `tau ${short(tau)}: ${$("now-word").textContent}${worth}`);
    $("map").setAttribute("aria-label", `Map of states at tau ${short(tau)}, coloured by cluster. ${$("now-word").textContent}.`);
    $("previous").disabled = neighbour(-1) < 0;
    $("next").disabled = neighbour(1) < 0;
    $("arm").disabled = now.state === "certified";
    document.documentElement.dataset.tau = String(tau);
  };
  const colourStates = () => {
    cluster(arm, tau, labels);
    sizes.fill(0);
    for (let s = 0; s < drawn; s++) if (s !== end) sizes[labels[s]]++;
    const hasAlone = isWhole && sizes.some((n) => n === 1);
    $("map-note").textContent = !anyPlace ? "No state has a place to be drawn at."
      : hasAlone ? "Grey: states alone in their cluster." : "";
  };

  let waiting = 0;
  const schedule = () => {
    if (!waiting) waiting = requestAnimationFrame(() => { waiting = 0; drawMap(); });
  };
  function setTau(value, source) {
    if (!Number.isFinite(value) || value < 0) return;
    tau = value;
    if (source !== "slider") slider.value = toSlider(tau);
    if (source !== "field") field.value = String(tau);
    colourStates();
    tell();
    for (const move of markers) move();
    schedule();
  }
  slider.addEventListener("input", () => setTau(fromSlider(Number(slider.value)), "slider"));
  field.addEventListener("input", () => { if (field.value !== "") setTau(Number(field.value), "field"); });
  field.addEventListener("change", () => { field.value = String(tau); });
  for (const [id, side] of [["previous", -1], ["next", 1]]) {
    $(id).addEventListener("click", () => {
      const k = neighbour(side);
      if (k >= 0) setTau(inside(profile.intervals[k]));
    });
  }
  for (const radio of document.querySelectorAll('input[name="arm"]')) {
    radio.addEventListener("change", () => { arm = radio.value; setTau(tau); });
  }

  const copy = $("copy");
  if (copy) copy.addEventListener("click", async () => {
    const text = $("commands").textContent;
    let done = true;
    try { await navigator.clipboard.writeText(text); } catch { // not every browser allows it offline
      const range = document.createRange();
      range.selectNodeContents($("commands"));
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      done = document.execCommand("copy");
    }
    copy.textContent = done ? "Copied" : "Press Ctrl+C";
    setTimeout(() => { copy.textContent = "Copy"; }, 1600);
  });

  // -- all of it ----------------------------------------------------------------------------

  const drawAll = () => {
    markers.length = 0;
    layoutMap();
    drawProfile();
    drawFrontier();
    drawWidths();
    drawTree();
    drawCurves();
    setTau(tau, "all");
    drawMap();
  };
  let width = 0;
  new ResizeObserver(() => {
    const now = document.documentElement.clientWidth;
    if (now !== width) { width = now; drawAll(); }
  }).observe(document.documentElement);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  width = document.documentElement.clientWidth;
  drawAll();
})();
