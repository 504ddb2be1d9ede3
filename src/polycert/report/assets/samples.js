// The table of samples: columns of numbers, sorted and filtered by position, shown a page at a time.
const PAGE = 50;
const HEADINGS = {
  index: "index", label: "label", prediction: "prediction", state: "state", nearest: "nearest class", margin: "margin", radius: "radius within eps",
  largest: "largest radius", attack_radius: "broken at", certified: "Lin", certified_crown: "CROWN", certified_ibp: "IBP", attacked: "attacked", status: "exact",
};
const YES_NO = new Set(["certified", "certified_crown", "certified_ibp", "attacked"]);
const view = { model: null, order: [], page: 0, key: "index", ascending: true };

function cellText(name, value) {
  if (Number.isNaN(value)) return "–";
  if (name === "state") return STATES[value];
  if (name === "status") return DATA.statuses[value];
  if (YES_NO.has(name)) return value ? "yes" : "no";
  const digits = view.model.samples[name].digits;
  return digits ? value.toFixed(Math.min(digits, 5)) : String(value);
}

function showSamples(model) {
  view.model = model;
  $("#p-samples").hidden = !model.samples;
  if (!model.samples) return;
  const columns = samplesOf(model);
  Object.assign(view, { key: "index", ascending: true, names: Object.keys(HEADINGS).filter((name) => columns[name]) });
  const buttons = view.names.map((name) => make("th", { scope: "col", "data-key": name }, make("button", { type: "button" }, HEADINGS[name])));
  $("#samples thead").replaceChildren(make("tr", {}, buttons));
  const form = $("#filters");
  form.reset();
  for (const name of ["label", "prediction"]) {
    const known = [...new Set(columns[name])].sort((a, b) => a - b);
    form.elements[name].replaceChildren(make("option", { value: "" }, "any"), ...known.map((value) => make("option", { value }, String(value))));
  }
  refresh();
}

// Returns the samples that pass the filters, in the chosen order.
function refresh() {
  const columns = samplesOf(view.model);
  const passes = filter(columns);
  view.order = [];
  for (let k = 0; k < view.model.count; k++) if (passes(k)) view.order.push(k);
  const values = columns[view.key], sign = view.ascending ? 1 : -1;
  view.order.sort((a, b) => {
    const [one, other] = [values[a], values[b]];
    if (Number.isNaN(one) || Number.isNaN(other)) return Number.isNaN(one) - Number.isNaN(other) || a - b;
    return sign * (one - other) || a - b;
  });
  view.page = 0;
  showPage();
}

const STATE_FILTERS = {
  all: () => true, proved: (state) => state === PROVED, partial: (state, k, columns) => columns.radius && columns.radius[k] > 0 && state !== PROVED && state !== WRONG,
  nothing: (state, k, columns) => state !== PROVED && state !== WRONG && !(columns.radius && columns.radius[k] > 0),
  open: (state) => state === PARTIAL || state === NOTHING, broken: (state) => state === BROKEN, wrong: (state) => state === WRONG,
};

function filter(columns) {
  const asked = Object.fromEntries(new FormData($("#filters")));
  const number = (text) => (text.trim() === "" ? NaN : Number(text.replace(",", ".")));
  const low = number(asked.low), high = number(asked.high), index = asked.index.trim();
  const measure = columns.largest || columns.radius;
  const fits = STATE_FILTERS[asked.state];
  return (k) =>
    fits(columns.state[k], k, columns) &&
    (asked.label === "" || columns.label[k] === Number(asked.label)) &&
    (asked.prediction === "" || columns.prediction[k] === Number(asked.prediction)) &&
    (index === "" || String(columns.index[k]).startsWith(index)) &&
    (Number.isNaN(low) || (measure && measure[k] >= low)) &&
    (Number.isNaN(high) || (measure && measure[k] <= high));
}

function showPage() {
  const pages = Math.max(1, Math.ceil(view.order.length / PAGE));
  view.page = Math.min(Math.max(view.page, 0), pages - 1);
  const columns = samplesOf(view.model);
  const chosen = view.order.slice(view.page * PAGE, (view.page + 1) * PAGE);
  $("#samples tbody").replaceChildren(...chosen.map((k) => make("tr", {}, view.names.map((name) => cell(name, columns[name][k])))));
  for (const heading of $$("#samples th[data-key]")) {
    heading.setAttribute("aria-sort", heading.dataset.key === view.key ? (view.ascending ? "ascending" : "descending") : "none");
  }
  $("#shown").textContent = `${thousands(view.order.length)} of ${thousands(view.model.count)} samples.`;
  $("#page").textContent = `page ${view.page + 1} of ${pages}`;
  for (const button of $$(".pages button")) {
    const back = button.dataset.step === "first" || button.dataset.step === "back";
    button.disabled = back ? view.page === 0 : view.page === pages - 1;
  }
}

function cell(name, value) {
  const text = cellText(name, value);
  if (name === "index") return make("th", { scope: "row" }, text);
  return make("td", name === "state" ? { class: `state s${value}` } : {}, text);
}

function startSamples() {
  $("#samples thead").addEventListener("click", (event) => {
    const heading = event.target.closest("th[data-key]");
    if (!heading) return;
    view.ascending = heading.dataset.key === view.key ? !view.ascending : true;
    view.key = heading.dataset.key;
    refresh();
  });
  const form = $("#filters");
  form.addEventListener("input", refresh);
  form.addEventListener("reset", () => setTimeout(refresh));
  form.addEventListener("submit", (event) => event.preventDefault());
  $(".pages").addEventListener("click", (event) => {
    const step = event.target.dataset.step;
    if (!step) return;
    view.page = { first: 0, back: view.page - 1, next: view.page + 1, last: Infinity }[step];
    showPage();
  });
}
