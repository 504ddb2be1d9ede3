// The embedded data, and helpers that make elements. Text is always inserted as text, never as markup.
const DATA = JSON.parse(document.getElementById("data").textContent);
const $ = (selector, within = document) => within.querySelector(selector);
const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}
const make = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// Returns a packed column as numbers: (base + code) / 10^digits, and NaN where a value is missing.
function unpack(column) {
  const bytes = Uint8Array.from(atob(column.data), (letter) => letter.charCodeAt(0));
  const size = column.bits / 8;
  const view = new DataView(bytes.buffer);
  const read = { 1: (k) => view.getUint8(k), 2: (k) => view.getUint16(2 * k, true), 4: (k) => view.getUint32(4 * k, true) }[size];
  const scale = 10 ** column.digits;
  const values = new Float64Array(bytes.length / size);
  for (let k = 0; k < values.length; k++) {
    const code = read(k);
    values[k] = code === 2 ** column.bits - 1 ? NaN : (column.base + code) / scale;
  }
  return values;
}

// Returns the samples of a model as columns, which are unpacked once.
function samplesOf(model) {
  if (!model.samples) return null;
  if (!model.columns) {
    model.columns = {};
    for (const [name, column] of Object.entries(model.samples)) model.columns[name] = unpack(column);
    model.columns.state = states(model.columns, model.count);
  }
  return model.columns;
}

const STATES = ["proved", "in part", "unproved", "broken", "misclassified"];
const [PROVED, PARTIAL, NOTHING, BROKEN, WRONG] = STATES.keys();

function states(columns, count) {
  const found = new Float64Array(count);
  const is = (name, k) => columns[name] !== undefined && columns[name][k] === 1;
  for (let k = 0; k < count; k++) {
    const status = columns.status ? DATA.statuses[columns.status[k]] : undefined;
    if (columns.label[k] !== columns.prediction[k]) found[k] = WRONG;
    else if (is("certified", k) || is("certified_crown", k) || is("certified_ibp", k) || status === "robust") found[k] = PROVED;
    else if (is("attacked", k) || status === "falsified") found[k] = BROKEN;
    else found[k] = columns.radius && columns.radius[k] > 0 ? PARTIAL : NOTHING;
  }
  return found;
}

const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
const short = (value) => (Number.isFinite(value) ? String(Number(value.toPrecision(4))) : "–");
const radius = (value, digits = 4) => (Number.isFinite(value) ? value.toFixed(digits) : "–");
const cutDown = (value, digits = 4) => radius(Math.floor(value * 10 ** digits + 1e-9) / 10 ** digits, digits);
const thousands = (count) => count.toLocaleString("en");

// Returns the value below which a share of sorted values lies.
const quantile = (sorted, share) => (sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] : NaN);
