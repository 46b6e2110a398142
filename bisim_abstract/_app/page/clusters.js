// A cluster that is chosen, by a click, by keys or from a list: its states, and what keeps it from
// another one.

const MOST_ROWS = 200, MOST_CHOICES = 300;
const chosen = [-1, -1]; // a drawn state of the cluster, and of the one to compare with
const choosers = [$("cluster-one"), $("cluster-two")];

const stateOf = (s) => (isWhole ? s : data.map.states[s]);
const idOf = (s) => (data.map.ids ? data.map.ids[s] : stateOf(s));
const nameOf = (s) => (s === end ? "the end of episodes" : (data.map.names && data.map.names[s]) || "");
const callState = (s) => `${stateOf(s)}${nameOf(s) ? ` (${nameOf(s)})` : ""}`;
const drawnWord = isWhole ? "state" : "drawn state";
const callCluster = (s) => {
  const n = sizes[labels[s]];
  return n <= 1 ? `${drawnWord} ${callState(s)}` : `${plural(n, drawnWord)} like ${callState(labels[s])}`;
};
const membersOf = (s) => {
  const found = [];
  for (let t = 0; t < drawn; t++) if (labels[t] === labels[s] && t !== end) found.push(t);
  return found;
};

// -- the list of states -------------------------------------------------------------------

const hasIds = data.map.ids !== null && data.map.ids.some((id, s) => s !== end && id !== stateOf(s));
const columns = [
  ["state", "state", stateOf],
  ...(hasIds ? [["id", "id", idOf]] : []),
  ...(data.map.names ? [["name", "name", nameOf]] : []),
  ...(data.states ? [
    ["optimal_lower", "best value, at least", (s) => data.states.optimal_lower[s]],
    ["optimal_upper", "at most", (s) => data.states.optimal_upper[s]],
    ["action_name", "plan", (s) => data.states.actions[data.states.action[s]]],
    ["policy_lower", "plan's value, at least", (s) => data.states.policy_lower[s]],
  ] : []),
];
// Ids that are too long to be read by people are in the file alone.
const listed = columns.filter(([name]) => name !== "id" || !data.map.ids.some((id) => typeof id === "string"));
const found = () => {
  if (chosen[0] < 0) return [];
  const words = $("cluster-search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const members = membersOf(chosen[0]);
  if (!words.length) return members;
  return members.filter((s) => {
    const text = columns.map(([, , value]) => value(s)).join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
};
const element = (tag, text, attributes = {}) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.textContent = text;
  return node;
};
const listStates = () => {
  const body = $("cluster-states").tBodies[0], head = $("cluster-states").tHead;
  const isAny = chosen[0] >= 0;
  $("cluster-list").hidden = !isAny;
  if (!isAny) return;
  const rows = found(), all = sizes[labels[chosen[0]]];
  const row = document.createElement("tr");
  for (const [name, title] of listed) row.append(element("th", title, { scope: "col", class: name }));
  head.replaceChildren(row);
  body.replaceChildren(...rows.slice(0, MOST_ROWS).map((s) => {
    const line = document.createElement("tr");
    listed.forEach(([name, title, value], k) => {
      const attributes = k ? { "data-head": title, class: name } : { scope: "row" };
      line.append(element(k ? "td" : "th", String(value(s) ?? ""), attributes));
    });
    return line;
  }));
  const shown = Math.min(rows.length, MOST_ROWS);
  $("cluster-count").textContent = (rows.length < all ? `${count(rows.length)} of ${plural(all, drawnWord)} found.` : `${plural(all, drawnWord)}.`)
    + (shown < rows.length ? ` The first ${count(shown)} are listed; the file has all of them.` : "")
    + (isWhole ? "" : " Only drawn states are listed; ask certificate.to_frame(mdp) for all.");
  $("cluster-csv").disabled = !rows.length;
};

// Names may be anybody's: what a spreadsheet would compute gets an apostrophe before it.
const cell = (v) => {
  if (v === null || v === undefined) return "";
  if (typeof v === "number") return String(v);
  const text = /^\s*[=+\-@＝＋－＠']/.test(v) && !/^-?\d+$/.test(v) ? `'${v}` : v;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};
const asCsv = (rows) => [columns.map(([name]) => name).join(","),
  ...rows.map((s) => columns.map(([, , value]) => cell(value(s))).join(","))].join("\n") + "\n";
$("cluster-csv").addEventListener("click", () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([asCsv(found())], { type: "text/csv" }));
  link.download = `cluster-of-${stateOf(labels[chosen[0]])}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
});
$("cluster-search").addEventListener("input", listStates);

// -- what keeps two clusters apart --------------------------------------------------------

// From which threshold on an arm has two states in one cluster.
const linkedFrom = (name, s, t) => {
  const { tau: weights, edges, first, second } = forests[name];
  const parent = new Int32Array(drawn).map((_, k) => k);
  let k = 0;
  for (let level = 0; level < weights.length; level++) {
    for (const last = k + edges[level]; k < last; k++) {
      const a = find(parent, first[k]), b = find(parent, second[k]);
      if (a < b) parent[b] = a; else parent[a] = b;
    }
    if (find(parent, s) === find(parent, t)) return weights[level];
  }
  return Infinity;
};
const reasons = new Map(); // by the names of two clusters at the certificate's own threshold
const own = data.separations ? new Int32Array(drawn) : null;
if (own) {
  cluster("upper", data.separations.tau, own);
  for (const { first, second, text } of data.separations.pairs) {
    reasons.set([own[first], own[second]].sort((a, b) => a - b).join(), text);
  }
}
const separation = (s, t) => {
  if (labels[s] === labels[t]) return ["Both are in the same cluster."];
  const scope = data.scope === "all" ? "" : ", as far as covered pairs tell";
  const low = linkedFrom("lower", s, t), high = linkedFrom("upper", s, t);
  const lines = [];
  const below = low > 0 ? `Below tau ${roundedDown(low)} they are proven to be in different clusters` : "";
  const from = high < Infinity ? `from tau ${roundedUp(high)} on in the same one` : "no threshold is proven to put them into one";
  lines.push(`${below ? `${below}, ${from}` : `${from[0].toUpperCase()}${from.slice(1)}`}${scope}.`);
  if (!own) return lines;
  const at = `At the certificate's threshold, tau ${short(data.separations.tau)}`;
  const text = reasons.get([own[s], own[t]].sort((a, b) => a - b).join());
  if (own[s] === own[t]) lines.push(`${at}, they are one cluster.`);
  else if (text) lines.push(text);
  else {
    // A pair that is no link of the tree may be closer than some that are.
    const links = `${plural(reasons.size, "pair")} of clusters: the shortest links that join clusters to one another`;
    lines.push(reasons.size ? `${at}, what sets clusters apart is explained for ${links}. This pair is not one of them.`
      : `${at}, what sets clusters apart is not explained on this page: ask certificate.nearest(5, mdp).`);
    if (low > 0 && !scope) lines.push(`State ${callState(s)} and state ${callState(t)} are at least ${roundedDown(low)} apart.`);
  }
  return lines;
};
const tellPair = () => {
  const [s, t] = chosen;
  $("separation").replaceChildren(...(s < 0 || t < 0 ? [] : separation(s, t).map((text) => element("p", text))));
};

// -- choosing -----------------------------------------------------------------------------

let filledFor = ""; // lists stay as they are while somebody reads them
const fillChoosers = () => {
  const key = `${arm} ${tau}`;
  const heads = [];
  const isSame = key === filledFor && choosers.every((chooser, k) => {
    const now = String(chosen[k] < 0 ? -1 : labels[chosen[k]]);
    return [...chooser.options].some((option) => option.value === now);
  });
  filledFor = key;
  for (let s = 0; s < drawn; s++) if (labels[s] === s && sizes[s] > 0) heads.push(s);
  heads.sort((a, b) => sizes[b] - sizes[a] || a - b);
  choosers.forEach((chooser, k) => {
    const now = chosen[k] < 0 ? -1 : labels[chosen[k]];
    if (isSame) { chooser.value = String(now); return; }
    const choices = heads.slice(0, MOST_CHOICES);
    if (now >= 0 && !choices.includes(now)) choices.push(now);
    const left = heads.length - choices.length;
    const first = k ? "none" : `choose one of ${plural(heads.length, "cluster")}${left > 0 ? `; ${count(left)} are not listed here, but on the map` : ""}`;
    chooser.replaceChildren(element("option", first, { value: "-1" }),
      ...choices.map((s) => element("option", callCluster(s), { value: String(s) })));
    chooser.value = String(now);
  });
  $("cluster-swatches").replaceChildren(...chosen.filter((s) => s >= 0).map((s) => {
    const swatch = element("i", "");
    swatch.style.background = paint(s, style("--alone"));
    return swatch;
  }));
};
const showChosen = () => {
  $("cluster-title").textContent = chosen[0] < 0 ? "Look into a cluster"
    : `Cluster of ${callCluster(chosen[0])}`.replace(/^Cluster of (drawn )?state /, "State ") + (sizes[labels[chosen[0]]] <= 1 ? ", alone" : "");
  $("cluster-two").disabled = $("compare").disabled = chosen[0] < 0;
  fillChoosers();
  tellPair();
  listStates();
  schedule();
};
const choose = (s, k) => {
  if (s === end) return;
  chosen[k] = s;
  if (k === 0 && s < 0) chosen[1] = -1;
  setComparing(false);
  showChosen();
};
let isComparing = false;
const setComparing = (value) => {
  isComparing = value;
  $("compare").setAttribute("aria-pressed", String(value));
};
$("compare").addEventListener("click", () => setComparing(!isComparing));
choosers.forEach((chooser, k) => chooser.addEventListener("change", () => choose(Number(chooser.value), k)));

const pick = (s, shift) => { if (s >= 0) choose(s, (shift || isComparing) && chosen[0] >= 0 ? 1 : 0); };
$("map").addEventListener("click", (event) => {
  const box = $("map").getBoundingClientRect();
  pick(stateAt(event.clientX - box.left, event.clientY - box.top), event.shiftKey);
});

// The map by keys: arrows go to the next state in that direction, Enter chooses its cluster.
let cursor = -1;
const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const towards = (s, [dx, dy]) => {
  let best = s, near = Infinity;
  for (let t = 0; t < drawn; t++) {
    if (xs[t] === null || t === s) continue;
    const ahead = dx * (xs[t] - xs[s]) + dy * (ys[t] - ys[s]);
    const aside = Math.abs(dy * (xs[t] - xs[s])) + Math.abs(dx * (ys[t] - ys[s]));
    if (ahead > 0 && ahead >= aside && ahead + 2 * aside < near) { near = ahead + 2 * aside; best = t; }
  }
  return best;
};
const moveCursor = (s) => {
  cursor = pointed = s;
  $("map-cursor").textContent = s < 0 ? "" : tipLines(s).join(", ");
  schedule();
};
$("map").addEventListener("keydown", (event) => {
  if (MOVES[event.key]) {
    const first = xs.findIndex((x) => x !== null);
    moveCursor(cursor < 0 ? first : towards(cursor, MOVES[event.key]));
  } else if ((event.key === "Enter" || event.key === " ") && cursor >= 0) pick(cursor, event.shiftKey);
  else if (event.key === "Escape") choose(-1, 0);
  else return;
  event.preventDefault();
});
$("map").addEventListener("blur", () => moveCursor(-1));

// Thresholds move faster than lists can be written.
let later = 0;
const followTau = () => {
  clearTimeout(later);
  later = setTimeout(showChosen, 120);
};
