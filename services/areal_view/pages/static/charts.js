// Curves of a run, and its live updates: draws each figure from its JSON, and again when the server says that it changed.
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const drawn = new Map();

function options(figure, data) {
  const colours = ["--a", "--b", "--c", "--p3", "--n3", "--dim"].map(css);
  const axis = { stroke: css("--dim"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false } };
  return {
    width: Math.max(280, figure.clientWidth - 20),
    height: 170,
    scales: { x: { time: false } },
    axes: [{ ...axis, label: "step", size: 34, labelSize: 16, labelGap: 0 }, { ...axis, size: 56 }],
    series: [
      { label: "step" },
      ...data.lines.map((line, at) => ({
        label: line.label,
        stroke: colours[at % colours.length],
        width: line.points ? 1 : 1.5,
        spanGaps: true,
        points: { show: Boolean(line.points), size: 6, fill: css("--bg") },
      })),
    ],
  };
}

async function draw(figure) {
  const inside = figure.querySelector("script"); // of a static export, which has no server to ask
  const answer = inside ? new Response(inside.textContent) : await fetch(figure.dataset.chart);
  if (!answer.ok) return;
  const data = await answer.json();
  const columns = [data.steps, ...data.lines.map((line) => line.values)];
  const before = drawn.get(figure);
  if (before && before.series.length === columns.length) {
    before.setData(columns);
    return;
  }
  if (before) before.destroy();
  const chart = new uPlot(options(figure, data), columns, figure);
  drawn.set(figure, chart);
  chart.over.addEventListener("click", () => {
    const at = chart.cursor.idx;
    if (figure.dataset.steps && at !== null && at !== undefined) location.href = figure.dataset.steps + chart.data[0][at];
  });
}

const figures = [...document.querySelectorAll("figure[data-chart]")];
figures.forEach(draw);
addEventListener("resize", () => {
  for (const [figure, chart] of drawn) chart.setSize({ width: Math.max(280, figure.clientWidth - 20), height: 170 });
});

const live = document.querySelector("[data-live]");
if (live) {
  const source = new EventSource(live.dataset.live);
  source.addEventListener("curves", () => figures.forEach(draw));
  source.addEventListener("facts", () => document.body.dispatchEvent(new CustomEvent("changed")));
}
