// The slider and its words, and drawing all of it.

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
      // Rounded inwards; a range too narrow for that is told in all digits.
      const isNarrow = high !== null && inFew(low, true) >= inFew(high, false);
      const from = isNarrow ? low : roundedUp(low);
      detail = `Both arms agree for tau from ${from} ${high === null ? "on" : `to below ${isNarrow ? high : roundedDown(high)}`}.`;
    }
    if (now.upper === data.n_live && data.n_live > 1) detail += " No states are merged.";
  } else if (now.state === "unknown") {
    detail = "Too many certified ranges to list them all; ask certificate.partitions(tau).";
  }
  $("now-detail").textContent = detail;
  const value = now.state === "certified" ? markAt(tau) : null;
  const kept = (mark) => mark.kept_text + (mark.ends_fewer ? "; clearly fewer episodes may end" : "");
  const none = { certified: "not evaluated", undecided: "not certified", unknown: "not known" }[now.state];
  $("now").dataset.worth = value ? (value.is_worth ? "useful" : "poor") : "none";
  $("kept").textContent = value ? kept(value) : none;
  $("loss").textContent = value ? `at most ${value.loss_text}` : none;
  const worth = value ? `, retained ${kept(value)}` : "";
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
  followTau();
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

for (const button of document.querySelectorAll(".copy")) {
  const source = $(button.dataset.copies);
  button.addEventListener("click", async () => {
    let done = true;
    try { await navigator.clipboard.writeText(source.textContent); } catch { // not every browser allows it offline
      const range = document.createRange();
      range.selectNodeContents(source);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      done = document.execCommand("copy");
    }
    button.textContent = done ? "Copied" : "Press Ctrl+C";
    setTimeout(() => { button.textContent = "Copy"; }, 1600);
  });
}

// -- all of it ----------------------------------------------------------------------------

const drawAll = () => {
  markers.length = 0;
  layoutMap();
  drawProfile();
  drawFrontier();
  drawWidths();
  drawTree();
  drawGraph();
  drawCurves();
  setTau(tau, "all");
  showChosen();
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
