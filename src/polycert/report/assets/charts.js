// Charts as inline SVG: axes, lines, steps, areas, bars. Each has a caption, and its figures as a table.
function niceTicks(low, high, wanted) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) ticks.push(Number((k * step).toPrecision(10)));
  return ticks;
}

// Returns a plane with axes; `at.x` and `at.y` map values to pixels.
function plane({ width, height, x, y, title }) {
  const edge = { left: 50, right: 16, top: 14, bottom: 42 };
  const inner = { width: width - edge.left - edge.right, height: height - edge.top - edge.bottom };
  const at = {
    x: (value) => edge.left + (inner.width * (value - x.low)) / (x.high - x.low),
    y: (value) => edge.top + inner.height * (1 - (value - y.low) / (y.high - y.low)),
  };
  const root = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": title });
  const bottom = edge.top + inner.height;
  for (const tick of niceTicks(y.low, y.high, Math.max(3, inner.height / 50))) {
    root.append(
      draw("line", { class: "rule", x1: edge.left, x2: width - edge.right, y1: at.y(tick), y2: at.y(tick) }),
      draw("text", { class: "tick", x: edge.left - 8, y: at.y(tick) + 4, "text-anchor": "end" }, (y.format || short)(tick)),
    );
  }
  for (const tick of niceTicks(x.low, x.high, Math.max(3, inner.width / 80))) {
    root.append(draw("text", { class: "tick", x: at.x(tick), y: bottom + 17, "text-anchor": "middle" }, (x.format || short)(tick)));
  }
  root.append(
    draw("line", { class: "axis", x1: edge.left, x2: width - edge.right, y1: bottom, y2: bottom }),
    draw("text", { class: "label", x: edge.left + inner.width / 2, y: height - 5, "text-anchor": "middle" }, x.label),
  );
  return { root, at, edge, bottom, right: width - edge.right };
}

const pathOf = (points) => points.map(([x, y], k) => `${k ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

function line(at, xs, ys, name) {
  const points = xs.map((x, k) => [x, ys[k]]).filter((pair) => pair.every(Number.isFinite));
  return draw("path", { class: `line ${name}`, d: pathOf(points.map(([x, y]) => [at.x(x), at.y(y)])) });
}

function between(at, xs, upper, lower, name) {
  const there = xs.map((x, k) => [at.x(x), at.y(upper[k])]);
  const back = xs.map((x, k) => [at.x(x), at.y(lower[k])]).reverse();
  return draw("path", { class: name, d: `${pathOf([...there, ...back])}Z` });
}

// Draws a dashed line with words on the side that has room.
function target(chart, value, words) {
  const x = chart.at.x(value);
  const late = x > (chart.edge.left + chart.right) / 2;
  return draw("g", { class: "target" },
    draw("line", { x1: x, x2: x, y1: chart.edge.top - 4, y2: chart.bottom }),
    draw("text", { x: x + (late ? -6 : 6), y: chart.edge.top + 6, "text-anchor": late ? "end" : "start" }, words));
}

const legend = (entries) => make("ul", { class: "legend" }, entries.map(([name, text]) => make("li", {}, swatch(name), text)));
const swatch = (name) => draw("svg", { viewBox: "0 0 24 10", width: 24, height: 10, "aria-hidden": "true" },
  name === "gap" ? draw("rect", { class: "gap", width: 24, height: 10 }) : draw("line", { class: `line ${name}`, x1: 0, x2: 24, y1: 5, y2: 5 }));

// Returns a chart with a caption, and its figures folded up below it.
function figure(root, caption, headings, rows, ...extra) {
  return make("figure", {}, root, ...extra, make("figcaption", {}, caption), fold("Figures of this chart", headings, rows));
}

function fold(summary, headings, rows) {
  const head = make("thead", {}, make("tr", {}, headings.map((text) => make("th", { scope: "col" }, text))));
  const line = (row) => make("tr", {}, row.map((text, k) => make(k ? "td" : "th", k ? {} : { scope: "row" }, String(text))));
  const table = make("table", {}, make("caption", { class: "hidden" }, summary), head, make("tbody", {}, rows.map(line)));
  return make("details", { class: "made" }, make("summary", {}, summary),
    make("div", { class: "scroll", role: "region", "aria-label": summary, tabindex: 0 }, table));
}
