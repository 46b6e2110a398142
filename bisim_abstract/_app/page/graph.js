// The small model as a graph: circles are clusters, arrows are where actions lead.

const { graph } = data;
let lit = -1; // the circle that is looked at
const callNode = (k) => {
  const node = graph.nodes[k];
  if (node.is_end) return "the end";
  const name = node.name ? ` (${node.name})` : "";
  return node.size === 1 ? `state ${node.state}${name}` : `${plural(node.size, "state")} like ${node.state}${name}`;
};
// It says 0% or 100% only where it is so.
const percent = (p) => {
  if (p <= 0 || p >= 1) return p <= 0 ? "0%" : "100%";
  const near = Number((100 * p).toPrecision(3));
  return p < 0.0005 ? "under 0.1%" : near >= 100 ? "over 99.9%" : `${near}%`;
};
const leadsTo = (k, action) => graph.arrows.filter((a) => a.source === k && a.action === action)
  .map((a) => `${percent(a.probability)} ${a.target === k ? "back to itself" : `to ${callNode(a.target)}`}`).join(", ");

// Arrows to draw: of the plan, of one action, or of all; those of one pair are one.
const arrowsOf = (what) => {
  const sums = new Map();
  for (const a of graph.arrows) {
    const isPlan = graph.nodes[a.source].plan === a.action;
    if (what === "plan" ? !isPlan : what !== "all" && Number(what) !== a.action) continue;
    const key = a.source * 1000 + a.target;
    const had = sums.get(key) ?? { source: a.source, target: a.target, probability: 0, isPlan: false };
    had.probability = Math.max(had.probability, a.probability);
    had.isPlan ||= isPlan;
    sums.set(key, had);
  }
  return [...sums.values()];
};
const tellNode = () => {
  const home = $("graph-node");
  if (lit < 0) {
    home.replaceChildren(element("p", "Point at a circle, or go to it by the Tab key, to read what its actions do. Enter looks into the cluster."));
    return;
  }
  const node = graph.nodes[lit];
  const lines = [element("p", `${callNode(lit)}${node.start > 0 ? `; ${percent(node.start)} of episodes begin here` : ""}`)];
  const list = document.createElement("ul");
  graph.actions.forEach((name, action) => {
    const text = leadsTo(lit, action);
    if (!text) return;
    const item = element("li", "");
    item.append(element(node.plan === action ? "strong" : "span", name), node.plan === action ? " (the plan): " : ": ", text);
    list.append(item);
  });
  home.replaceChildren(...lines, list);
};
const drawGraph = () => {
  if (!graph) return;
  const box = $("graph");
  const { svg, width, height } = frame(box, Math.min(Math.max(box.clientWidth * 0.62, 320), 620));
  svg.removeAttribute("aria-hidden");
  const { nodes } = graph;
  const pad = 30;
  const x = (k) => pad + (width - 2 * pad) * nodes[k].x, y = (k) => pad + (height - 2 * pad) * nodes[k].y;
  const room = Math.sqrt((width - 60) * (height - 60) / nodes.length);
  const most = Math.max(...nodes.map((node) => node.size));
  const radius = (k) => Math.max(Math.min(room * 0.3, 24) * (0.55 + 0.45 * Math.sqrt(nodes[k].size / most)), 7);
  const lines = [];
  for (const { source: s, target: t, probability, isPlan } of arrowsOf($("graph-action").value)) {
    const wide = 0.6 + 2.6 * Math.sqrt(probability), tip = 4 + 1.4 * wide;
    let d, end, angle;
    if (s === t) { // a loop above the circle
      const r = radius(s), a = [x(s) - r * 0.6, y(s) - r * 0.8], b = [x(s) + r * 0.6, y(s) - r * 0.8];
      d = `M${a.map((v) => v.toFixed(1)).join(" ")}C${(a[0] - 7).toFixed(1)} ${(a[1] - 15).toFixed(1)} ${(b[0] + 7).toFixed(1)} ${(b[1] - 15).toFixed(1)} ${b.map((v) => v.toFixed(1)).join(" ")}`;
      end = b; angle = Math.PI * 0.62;
    } else { // bent a little, so that both ways can be seen
      const dx = x(t) - x(s), dy = y(t) - y(s), far = Math.hypot(dx, dy) || 1;
      const mid = [(x(s) + x(t)) / 2 - dy * 0.12, (y(s) + y(t)) / 2 + dx * 0.12];
      const out = Math.atan2(mid[1] - y(s), mid[0] - x(s)), into = Math.atan2(y(t) - mid[1], x(t) - mid[0]);
      const a = [x(s) + radius(s) * Math.cos(out), y(s) + radius(s) * Math.sin(out)];
      end = [x(t) - (radius(t) + 1) * Math.cos(into), y(t) - (radius(t) + 1) * Math.sin(into)];
      const back = [end[0] - tip * Math.cos(into), end[1] - tip * Math.sin(into)];
      d = `M${a.map((v) => v.toFixed(1)).join(" ")}Q${mid.map((v) => v.toFixed(1)).join(" ")} ${(far < 4 ? end : back).map((v) => v.toFixed(1)).join(" ")}`;
      angle = into;
    }
    const group = add(svg, "g", { class: isPlan ? "arrow plan" : "arrow" });
    add(group, "path", { d, "stroke-width": wide.toFixed(2) });
    const corner = (turn) => `${(end[0] - tip * Math.cos(angle + turn)).toFixed(1)} ${(end[1] - tip * Math.sin(angle + turn)).toFixed(1)}`;
    add(group, "path", { d: `M${end.map((v) => v.toFixed(1)).join(" ")}L${corner(0.45)}L${corner(-0.45)}Z`, class: "tip-of" });
    lines.push([s, group]);
  }
  const light = (k) => {
    lit = k;
    for (const [s, group] of lines) group.classList.toggle("faint", k >= 0 && s !== k);
    tellNode();
  };
  nodes.forEach((node, k) => {
    const plan = node.plan === null ? "" : `; plan: ${graph.actions[node.plan]}, ${leadsTo(k, node.plan)}`;
    const group = add(svg, "g", { class: "node", role: "button", tabindex: "0", "aria-label": callNode(k) + plan });
    const isAlone = node.is_end || (isWhole && node.size <= 1);
    const fill = isAlone || node.drawn === null ? "var(--alone)" : colour(node.drawn);
    if (node.start > 0) add(group, "circle", { cx: x(k), cy: y(k), r: radius(k) + 4, class: "begin" });
    add(group, "circle", { cx: x(k), cy: y(k), r: radius(k), style: `fill:${fill}` });
    const text = node.is_end ? "end" : String(node.state);
    if (text.length * 6.4 < 2 * radius(k) + 4) {
      add(group, "text", { x: x(k), y: y(k) + 4, "text-anchor": "middle", style: `fill:${isAlone ? "var(--ink)" : "#000"}` }, text);
    }
    add(group, "title", {}, callNode(k));
    const look = () => {
      if (node.drawn === null) return;
      setTau(graph.tau);
      choose(node.drawn, 0);
      $("cluster").scrollIntoView({ block: "nearest" });
    };
    group.addEventListener("pointerenter", () => light(k));
    group.addEventListener("focus", () => light(k));
    group.addEventListener("click", look);
    group.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      look();
    });
  });
  light(-1);
};
if (graph) $("graph-action").addEventListener("change", drawGraph);
