// Charts: draws each figure from its JSON with bands, smoothed over raw lines, and again when the server says that it changed.
// The arrow keys read its values as they move a slider; the list below it has those at the cursor, else the newest.
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const COLOURS = ["--a", "--b", "--c", "--d", "--e", "--f"];
const DASHES = [[], [7, 3], [2, 3], [8, 3, 2, 3]];
const PALE = "40"; // alpha of bands and raw lines
const HEIGHT = 170;
const drawn = new Map(); // figure → its chart, data, list and plot

const number = (value) => (value === null || value === undefined ? "–" : Number(value.toPrecision(4)).toLocaleString("en-US", { maximumSignificantDigits: 4 }));
const element = (name, attributes = {}, ...inside) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...inside);
  return made;
};
const look = (at) => ({ stroke: css(COLOURS[at % COLOURS.length]), dash: DASHES[Math.floor(at / COLOURS.length) % DASHES.length] });

function parts(data) {
  const columns = [data.steps], series = [{}], bands = [];
  data.lines.forEach((line, at) => {
    const { stroke, dash } = look(at);
    const add = (values, style) => (columns.push(values), series.push({ spanGaps: true, points: { show: false }, ...style }));
    if (line.low) {
      add(line.low, { width: 0 });
      add(line.high, { width: 0 });
      bands.push({ series: [columns.length - 1, columns.length - 2], fill: stroke + PALE });
    }
    if (line.raw) add(line.raw, { stroke: stroke + PALE, width: 1 });
    const alone = line.values.filter((value) => value !== null).length === 1;
    add(line.values, { stroke, dash, width: line.points ? 1 : 1.5, points: { show: Boolean(line.points) || alone, size: 6, fill: css("--bg"), stroke } });
  });
  return { columns, series, bands };
}

function options(figure, data, { series, bands }) {
  const axis = { stroke: css("--dim"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false } };
  return {
    width: widthOf(figure), height: HEIGHT, series, bands,
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false } },
    scales: { x: { time: false }, y: data.log ? { distr: 3 } : {} },
    axes: [{ ...axis, label: data.axis, size: 34, labelSize: 16, labelGap: 0 }, { ...axis, size: 56 }],
    hooks: { setCursor: [(chart) => tell(figure, chart.cursor.idx)] },
  };
}

const widthOf = (figure) => Math.max(200, figure.clientWidth - 20);

function valueOf(line, at) {
  const bounds = line.low && line.low[at] !== null ? ` (${number(line.low[at])} to ${number(line.high[at])})` : "";
  return number(line.values[at]) + bounds;
}

function newest(line) {
  let at = line.values.length - 1;
  while (at > 0 && line.values[at] === null) at -= 1;
  return at;
}

// The values at place `at`, for eyes and for who hears them; without one the newest of each line.
function tell(figure, at) {
  const { data, list, plot } = drawn.get(figure) ?? {};
  if (!data) return;
  const here = at !== null && at !== undefined;
  data.lines.forEach((line, n) => (list.children[n].lastChild.textContent = valueOf(line, here ? at : newest(line))));
  const place = here ? at : data.steps.length - 1;
  const told = data.lines.filter((line) => line.values[place] !== null).map((line) => `${line.label} ${valueOf(line, place)}`);
  plot.setAttribute("aria-valuenow", place);
  plot.setAttribute("aria-valuetext", `${data.axis} ${data.steps[place]}: ${told.join(", ") || "nothing"}`);
  figure.querySelector(".at").textContent = `${data.axis} ${data.steps[place]}`;
}

function move(figure, event) {
  const { chart, data } = drawn.get(figure);
  const last = data.steps.length - 1, now = chart.cursor.idx ?? last, page = Math.max(1, Math.round(last / 10));
  if (event.key === "Enter") return open(figure);
  const to = { ArrowLeft: now - 1, ArrowRight: now + 1, ArrowDown: now - 1, ArrowUp: now + 1, PageDown: now - page, PageUp: now + page, Home: 0, End: last }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  chart.setCursor({ left: chart.valToPos(data.steps[Math.min(last, Math.max(0, to))], "x"), top: 10 });
}

function open(figure) {
  const { chart, data } = drawn.get(figure);
  const at = chart.cursor.idx;
  if (figure.dataset.steps && at !== null && at !== undefined) location.href = figure.dataset.steps + data.steps[at];
}

function notes(data) {
  const said = [];
  if (data.each > 1) said.push(`a point is ${data.each} steps, its band the least and greatest of them`);
  if (data.hidden) said.push(`${data.hidden} values at or below 0 are not on a log axis`);
  return said.join("; ");
}

function build(figure, data) {
  figure.querySelectorAll(":scope > :not(figcaption, script)").forEach((old) => old.remove());
  if (!data.lines.some((line) => line.values.some((value) => value !== null))) {
    figure.append(element("p", { class: "empty" }, "Nothing finite is recorded here."));
    return;
  }
  const label = `${figure.querySelector("figcaption").textContent} by ${data.axis}`;
  const plot = element("div", { class: "plot", tabindex: 0, role: "slider", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": data.steps.length - 1, "aria-valuenow": data.steps.length - 1 });
  const list = element("ul", { class: "lines" }, ...data.lines.map((line, at) => {
    const swatch = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const { stroke, dash } = look(at);
    swatch.innerHTML = `<line x1="0" x2="22" y1="5" y2="5" stroke="${stroke}" stroke-width="2.5" stroke-dasharray="${dash.join(" ")}"/>`;
    for (const [key, value] of [["width", 22], ["height", 10], ["aria-hidden", "true"]]) swatch.setAttribute(key, value);
    return element("li", {}, swatch, ` ${line.label} `, element("b"));
  }));
  const made = parts(data);
  figure.append(plot, element("p", { class: "meta at" }), list, element("p", { class: "meta" }, notes(data)));
  drawn.set(figure, { data, list, plot });
  const chart = new uPlot(options(figure, data, made), made.columns, plot);
  drawn.set(figure, { chart, data, list, plot, shape: shapeOf(data) });
  plot.addEventListener("keydown", (event) => move(figure, event));
  chart.over.addEventListener("click", () => open(figure));
  tell(figure, null);
}

const shapeOf = (data) => JSON.stringify([data.log, data.each, data.lines.map((line) => [line.label, Boolean(line.low), Boolean(line.raw)])]);

async function draw(figure) {
  const inside = figure.querySelector("script"); // of a static export, which has no server to ask
  const answer = inside ? new Response(inside.textContent) : await fetch(figure.dataset.chart);
  const data = answer.ok ? await answer.json() : { steps: [], lines: [], axis: "step" };
  const before = drawn.get(figure);
  if (before && before.shape === shapeOf(data)) {
    before.data = data;
    before.plot.setAttribute("aria-valuemax", data.steps.length - 1);
    before.chart.setData(parts(data).columns);
    tell(figure, before.chart.cursor.idx);
    return;
  }
  if (before) before.chart.destroy();
  drawn.delete(figure);
  build(figure, data);
}

const figures = [...document.querySelectorAll("figure[data-chart]")];
figures.forEach(draw);
addEventListener("resize", () => {
  for (const [figure, { chart }] of drawn) chart.setSize({ width: widthOf(figure), height: HEIGHT });
});

const live = document.querySelector("[data-live]");
if (live) {
  const source = new EventSource(live.dataset.live);
  source.addEventListener("curves", () => figures.forEach(draw));
  source.addEventListener("facts", () => document.body.dispatchEvent(new CustomEvent("changed")));
}
