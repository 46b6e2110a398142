// What the page knows, and what follows from it: numbers, clusterings, verdict and value at tau.
// Figures have the fields of figures.py and state_figures.py. Text reaches the page through
// textContent only.

const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const arms = ["lower", "upper"];
let tau = data.tau;
let arm = "upper";
let pointed = -1; // the drawn state under the pointer

// -- numbers ------------------------------------------------------------------------------

const count = (n) => n.toLocaleString("en-US");
// The end of episodes is never counted as a cluster.
const clusters = (n) => plural(n, "cluster") + (data.end === null ? "" : " (plus the terminal state)");
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
const short = (v) => {
  if (v === 0) return "0";
  const size = Math.abs(v);
  if (size < 1e-300) return "almost 0";
  if (size < 1e-3 || size >= 1e7) return v.toExponential(2).replace(/\.?0*e\+?/, "e");
  return size >= 1000 ? count(Math.round(v)) : String(Number(v.toPrecision(4)));
};

// A bound in as few digits: a lower one is rounded down, an upper one up, so that it holds as written.
const inFew = (v, isUpper) => {
  if (v <= 0) return v;
  if (v < 1e-300) return isUpper ? v : 0;
  if (v >= 1000 && v < 1e7) return isUpper ? Math.ceil(v) : Math.floor(v);
  const digits = v >= 1e-3 && v < 1000 ? 3 : 2; // after the first
  const text = v.toExponential(digits), near = Number(text);
  if (isUpper ? near >= v : near <= v) return near;
  const [mantissa, power] = text.split("e");
  return Number(`${Number(mantissa.replace(".", "")) + (isUpper ? 1 : -1)}e${Number(power) - digits}`);
};
const roundedDown = (v) => short(inFew(v, false));
const roundedUp = (v) => short(inFew(v, true));

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
