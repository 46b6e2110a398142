// Scales, ticks and marks that the plots share.

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
