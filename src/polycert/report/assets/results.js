// The part of the page about one model: figures, charts, pictures.
function showSummary(model) {
  $("#name").textContent = model.name;
  const facts = Object.entries(model.facts).map(([name, value]) => {
    const text = typeof value === "number" ? (name === "n" ? thousands(value) : name === "eps" ? short(value) : String(value)) : value;
    return make("li", {}, make("span", {}, name), ` ${text}`);
  });
  $("#facts").replaceChildren(...facts);
  $("#headline").textContent = model.headline;
  const wrong = $("#contradictions");
  wrong.hidden = !model.contradictions;
  wrong.textContent = `${model.contradictions} samples have an adversarial input inside their certified radius. Both cannot be true: please report this.`;
  $("#shares").replaceChildren(...(model.shares ? [sharesBar(model.shares)] : []));
  $("#cards").replaceChildren(...model.cards.map((card) =>
    make("div", {}, make("dt", {}, card.label), make("dd", {}, make("b", {}, card.value), make("small", {}, card.note)))));
  $("#command").textContent = model.command || "The record does not say which command made it.";
  $("#attack").textContent = model.attack && `Attack: ${model.attack}`;
  $("#path").textContent = model.path;
}

function sharesBar(shares) {
  const names = { proved: "proved", open: "open", broken: "broken by an attack", wrong: "misclassified" };
  const parts = [];
  let x = 0;
  for (const name of Object.keys(names)) {
    parts.push(draw("rect", { class: `share ${name}`, x: `${x}%`, width: `${shares[name]}%`, height: 20 }));
    x += shares[name];
  }
  const text = Object.entries(names).filter(([name]) => shares[name] > 0).map(([name, words]) => make("li", {}, make("i", { class: `dot ${name}`, "aria-hidden": "true" }),
    make("b", {}, `${shares[name].toFixed(1)} %`), ` ${words}`));
  return make("div", { class: "shares" }, draw("svg", { height: 20, width: "100%", "aria-hidden": "true" }, parts), make("ul", {}, text));
}

function showCharts(model) {
  const columns = samplesOf(model);
  const missing = (text) => make("p", { class: "missing" }, text);
  const place = (name, build, absent) => {
    const box = $(`#p-${name} .chart`);
    if (box.clientWidth) box.replaceChildren(absent ? missing(absent) : build(box.clientWidth));
  };
  const unknown = !columns ? model.missing.samples : columns.largest && columns.largest.some(Number.isFinite) ? null : "The search for the largest radii was not part of this evaluation.";
  for (const name of ["histogram", "classes"]) $(`#p-${name}`).hidden = Boolean(unknown);
  place("accuracy", (width) => accuracyChart(model, columns, width), unknown);
  if (!unknown) {
    place("histogram", (width) => histogram(model, columns, width));
    place("classes", (width) => classes(model, columns, width));
  }
  place("training", (width) => training(model, width), model.missing.curves || (model.curves.epoch ? null : "The metrics have no epochs."));
}

// Returns the radii that the curves count: 0 for a misclassified sample, and infinity for one without a counterexample.
// Samples that were not searched are left out of both curves.
function curveRadii(columns) {
  const right = (k) => columns.label[k] === columns.prediction[k];
  const searched = [...columns.largest.keys()].filter((k) => Number.isFinite(columns.largest[k]));
  const proved = Float64Array.from(searched, (k) => (right(k) ? columns.largest[k] : 0)).sort();
  const end = (value) => (Number.isNaN(value) ? Infinity : value);
  const known = columns.attack_radius && columns.attack_radius.some(Number.isFinite);
  const broken = known ? Float64Array.from(searched, (k) => (right(k) ? end(columns.attack_radius[k]) : 0)).sort() : null;
  return { proved, broken, correct: searched.filter(right).length };
}

// Returns how many sorted values are at least (or, strictly, more than) `value`.
function countFrom(sorted, value, strictly = false) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (strictly ? sorted[middle] <= value : sorted[middle] < value) low = middle + 1; else high = middle;
  }
  return sorted.length - low;
}

function accuracyChart(model, columns, width) {
  const { proved, broken, correct } = curveRadii(columns);
  const count = proved.length;
  const certified = (eps) => (eps > 0 ? countFrom(proved, eps) : correct) / count;
  const attacked = (eps) => countFrom(broken, eps, true) / count;
  const most = 1.08 * Math.max(proved[count - 1], model.eps || 0) || 1;
  const xs = Array.from({ length: 241 }, (_, k) => (most * k) / 240);
  const lower = xs.map(certified);
  const upper = broken ? xs.map(attacked) : null;
  const chart = plane({ width, height: width < 500 ? 260 : 340, title: "Accuracy against eps, proved and under attack; in words below",
    x: { low: 0, high: most, label: `eps (l_${model.norm})` }, y: { low: 0, high: 1, format: (v) => `${Math.round(100 * v)} %` } });
  if (upper) chart.root.append(between(chart.at, xs, upper, lower, "gap"), line(chart.at, xs, upper, "attack"));
  chart.root.append(line(chart.at, xs, lower, "proved"));
  if (model.eps) chart.root.append(target(chart, model.eps, `target ${short(model.eps)}`));
  const hand = draw("line", { class: "hand", y1: chart.edge.top, y2: chart.bottom });
  chart.root.append(hand);
  const say = (eps) => {
    const sure = certified(eps);
    if (!broken) return `At eps ${short(eps)}: ${percent(sure)} proved.`;
    const left = attacked(eps);
    return `At eps ${short(eps)}: ${percent(sure)} proved, ${percent(left)} not broken by the attack, ${percent(Math.max(left - sure, 0))} in between.`;
  };
  const output = make("output", { for: "eps" });
  const slider = make("input", { id: "eps", type: "range", min: 0, max: 240, step: 1 });
  const move = (eps) => {
    hand.setAttribute("x1", chart.at.x(eps));
    hand.setAttribute("x2", chart.at.x(eps));
    output.textContent = say(eps);
    slider.setAttribute("aria-valuetext", say(eps));
  };
  slider.value = String(Math.round((240 * (model.eps || most / 2)) / most));
  slider.addEventListener("input", () => move(xs[Number(slider.value)]));
  move(model.eps || xs[Number(slider.value)]);
  const keys = [["attack", "not broken by the attack"], ["gap", "open: neither proved nor broken"], ["proved", "proved"]];
  const rows = niceTicks(0, most, 10).map((eps) => [short(eps), percent(certified(eps)), ...(upper ? [percent(attacked(eps))] : [])]);
  return figure(chart.root,
    `Share of ${thousands(count)} samples that keep their class under any change of size eps. The truth lies between what is proved, by the search for the largest radius, and what the attack has not broken.`,
    ["eps", "proved", ...(upper ? ["not broken"] : [])], rows,
    legend(upper ? keys : keys.slice(2)),
    make("div", { class: "slider" }, make("label", { for: "eps" }, "Look at eps"), slider, output));
}

function histogram(model, columns, width) {
  const values = columns.largest;
  const sorted = Float64Array.from(values).filter(Number.isFinite).sort();
  const most = Math.max(sorted[sorted.length - 1], model.eps || 0) * 1.02 || 1;
  const bins = width < 420 ? 24 : 36;
  const counts = new Array(bins).fill(0);
  for (const value of sorted) counts[Math.min(bins - 1, Math.floor((value / most) * bins))]++;
  const chart = plane({ width, height: 270, title: "Histogram of certified radii; in words below",
    x: { low: 0, high: most, label: `largest certified radius (l_${model.norm})` }, y: { low: 0, high: 1.1 * Math.max(...counts), format: (v) => thousands(Math.round(v)) } });
  const step = chart.at.x(most / bins) - chart.at.x(0);
  counts.forEach((count, k) => {
    const y = chart.at.y(count);
    chart.root.append(draw("rect", { class: "bar", x: chart.at.x((most * k) / bins) + 0.5, y, width: Math.max(step - 1.5, 0.5), height: chart.bottom - y }));
  });
  if (model.eps) chart.root.append(target(chart, model.eps, `target ${short(model.eps)}`));
  const reached = model.eps ? `${percent(countFrom(sorted, model.eps) / sorted.length)} reach the target ${short(model.eps)}; ` : "";
  const none = sorted.length - countFrom(sorted, 0, true);
  const rows = counts.map((count, k) => [`${short((most * k) / bins)} to ${short((most * (k + 1)) / bins)}`, thousands(count)]);
  return figure(chart.root, `Median ${cutDown(quantile(sorted, 0.5))}; ${reached}${thousands(none)} samples (${percent(none / sorted.length)}) have no radius at all.`,
    ["radius", "samples"], rows);
}

const MOST_CLASSES = 20;

function classes(model, columns, width) {
  const groups = new Map();
  columns.label.forEach((label, k) => {
    if (!groups.has(label)) groups.set(label, { label, values: [], proved: 0, all: 0 });
    const group = groups.get(label);
    if (Number.isFinite(columns.largest[k])) group.values.push(columns.largest[k]);
    group.proved += columns.state[k] === PROVED;
    group.all++;
  });
  const all = [...groups.values()].filter((group) => group.values.length).sort((a, b) => a.label - b.label);
  for (const group of all) {
    group.values.sort((a, b) => a - b);
    [group.low, group.q1, group.median, group.q3, group.high] = [0.05, 0.25, 0.5, 0.75, 0.95].map((share) => quantile(group.values, share));
  }
  const ranked = [...all].sort((a, b) => a.median - b.median);
  const shown = all.length > MOST_CLASSES ? ranked.slice(0, MOST_CLASSES) : all;
  const most = 1.05 * Math.max(...shown.map((group) => group.high), model.eps || 0) || 1;
  const row = 26, height = 64 + row * shown.length, edge = 52;
  const chart = plane({ width, height, title: "Certified radius by class; in words below", x: { low: 0, high: most, label: `largest certified radius (l_${model.norm})` },
    y: { low: 0, high: 1, format: () => "" } });
  $$(".rule", chart.root).forEach((rule) => rule.remove());
  shown.forEach((group, k) => {
    const y = chart.edge.top + 10 + row * (k + 0.5) - 6;
    const x = chart.at.x;
    chart.root.append(
      draw("text", { class: "tick", x: edge - 10, y: y + 4, "text-anchor": "end" }, String(group.label)),
      draw("line", { class: "whisker", x1: x(group.low), x2: x(group.high), y1: y, y2: y }),
      draw("rect", { class: "box", x: x(group.q1), y: y - 7, width: Math.max(x(group.q3) - x(group.q1), 1), height: 14, rx: 2 }),
      draw("line", { class: "median", x1: x(group.median), x2: x(group.median), y1: y - 7, y2: y + 7 }));
  });
  if (model.eps) chart.root.append(draw("g", { class: "target" }, draw("line", { x1: chart.at.x(model.eps), x2: chart.at.x(model.eps), y1: 4, y2: chart.bottom })));
  const [worst, best] = [ranked[0], ranked[ranked.length - 1]];
  const some = all.length > MOST_CLASSES ? `The ${MOST_CLASSES} classes with the smallest medians of ${all.length}. ` : "";
  return figure(chart.root,
    `${some}Bars hold the middle half, lines 5 to 95 %, the mark is the median${model.eps ? ", the dashed line the target" : ""}. Smallest median: class ${worst.label} (${cutDown(worst.median)}); largest: class ${best.label} (${cutDown(best.median)}).`,
    ["class", "samples", "5 %", "25 %", "median", "75 %", "95 %", "proved within eps"],
    all.map((g) => [g.label, thousands(g.values.length), ...[g.low, g.q1, g.median, g.q3, g.high].map((v) => cutDown(v)), percent(g.proved / g.all)]));
}

function training(model, width) {
  const curves = model.curves;
  const charts = [
    { title: "error in validation, %", series: [["validation_CRE", "proved", "certified"], ["validation_CTE", "attack", "clean"]] },
    { title: "loss", series: [["loss", "proved", "loss"]] },
    { title: "eps in training", series: [["eps", "proved", "eps"]] },
  ].map((item) => ({ ...item, series: item.series.filter(([key]) => curves[key]) })).filter((item) => item.series.length);
  const each = width < 620 ? width : (width - 20 * (charts.length - 1)) / charts.length;
  const last = curves.epoch.length - 1;
  const box = make("div", { class: "trio" }, charts.map((item) => {
    const values = item.series.flatMap(([key]) => curves[key]).filter(Number.isFinite);
    const chart = plane({ width: each, height: 220, title: `${item.title} by epoch; figures below`,
      x: { low: 0, high: Math.max(curves.epoch[last], 1), label: "epoch" }, y: { low: 0, high: 1.08 * Math.max(...values) || 1 } });
    for (const [key, name] of item.series) chart.root.append(line(chart.at, curves.epoch, curves[key], name));
    return make("div", {}, make("h3", {}, item.title), chart.root, item.series.length > 1 ? legend(item.series.map(([, name, text]) => [name, text])) : null);
  }));
  const names = Object.keys(curves);
  const ends = [["loss", "loss"], ["validation_CTE", "clean error in validation"], ["validation_CRE", "certified error in validation"]]
    .filter(([key]) => Number.isFinite(curves[key] && curves[key][last]))
    .map(([key, text]) => `${text} ${short(curves[key][last])}${key === "loss" ? "" : " %"}`);
  return figure(box, `After epoch ${curves.epoch[last]}: ${ends.join(", ")}.`, names.map((name) => name.replace("_", " ")),
    curves.epoch.map((_, k) => names.map((name) => curves[name][k] ?? "–")));
}

function showPictures(model) {
  const panel = $("#p-pictures");
  panel.hidden = !model.pictures.hardest && !model.missing.pictures;
  if (!model.pictures.hardest) {
    $("#pictures").replaceChildren(make("p", { class: "missing" }, model.missing.pictures || ""));
    return;
  }
  $("#pictures").replaceChildren(...["hardest", "easiest"].filter((name) => model.pictures[name].length).map((name) => make("div", {},
    make("h3", {}, name === "hardest" ? "Hardest: the smallest certified radii" : "Easiest: the largest certified radii"),
    make("ul", { class: model.pictures[name].some((sample) => sample.counterexample) ? "pictures" : "pictures lone" }, model.pictures[name].map(picture)))));
}

function picture(sample) {
  const image = (source, alt, caption) => make("figure", {}, make("img", { src: source, alt, width: 72, height: 72 }), make("figcaption", {}, caption));
  const name = `sample ${sample.index}`;
  const images = [image(sample.input, `${name}, label ${sample.label}`, "input")];
  if (sample.counterexample) {
    images.push(image(sample.counterexample, `${name} changed so that its class changes`, "changed"),
      image(sample.difference, `the change of ${name}; grey is none, darker less, lighter more, at most ${radius(sample.change)}`, `±${radius(sample.change, 3)}`));
  }
  const wrong = sample.prediction !== sample.label;
  const facts = [
    make("b", {}, `radius ${sample.largest === undefined || sample.largest === null ? "–" : cutDown(sample.largest)}`),
    wrong ? `label ${sample.label}, predicted ${sample.prediction}` : `label ${sample.label}`,
    sample.nearest === undefined || sample.nearest === null || wrong ? null : `nearest class ${sample.nearest}`,
    Number.isFinite(sample.attack_radius) && !wrong ? `broken at ${radius(sample.attack_radius)}` : null,
  ].filter(Boolean);
  return make("li", { class: images.length === 1 ? "single" : null }, make("div", { class: "images" }, images),
    make("p", {}, make("span", { class: "index" }, `#${sample.index}`), " ", facts.flatMap((fact, k) => (k ? [" · ", fact] : [fact]))));
}
