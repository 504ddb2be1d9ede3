// The page: choice of model, tab and theme, and sorting of the table of records.
let current = 0;

function select(position) {
  current = position;
  const model = DATA.models[position];
  $("#model").value = String(position);
  for (const row of $$("#records tbody tr")) row.classList.toggle("chosen", Number(row.dataset.run) === position);
  showSummary(model);
  showCharts(model);
  showPictures(model);
  showSamples(model);
}

function startRecords() {
  const table = $("#records");
  $$("thead th", table).forEach((heading, column) => {
    heading.addEventListener("click", () => {
      const ascending = heading.getAttribute("aria-sort") !== "ascending";
      $$("thead th", table).forEach((other) => other.setAttribute("aria-sort", "none"));
      heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      const value = (row) => row.cells[column].dataset.value;
      const rows = $$("tbody tr", table).sort((a, b) => (ascending ? 1 : -1) * compare(value(a), value(b)) || 0);
      const filled = rows.filter((row) => value(row) !== "");
      $("tbody", table).append(...filled, ...rows.filter((row) => value(row) === ""));
    });
  });
  table.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-run]");
    if (link) select(Number(link.dataset.run));
  });
}

function compare(one, other) {
  const [a, b] = [Number(one), Number(other)];
  return Number.isNaN(a) || Number.isNaN(b) ? one.localeCompare(other) : a - b;
}

function startTabs() {
  const tabs = $$("[role=tab]");
  const open = (tab) => {
    for (const other of tabs) {
      const chosen = other === tab;
      other.setAttribute("aria-selected", String(chosen));
      other.tabIndex = chosen ? 0 : -1;
      document.getElementById(other.getAttribute("aria-controls")).classList.toggle("away", !chosen);
    }
    if (tab.id === "tab-results") showCharts(DATA.models[current]);
  };
  tabs.forEach((tab, k) => {
    tab.addEventListener("click", () => open(tab));
    tab.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
      const next = tabs[(k + (event.key === "ArrowRight" ? 1 : tabs.length - 1)) % tabs.length];
      next.focus();
      open(next);
    });
  });
  if (!tabs.length) return showCharts(DATA.models[current]);
  $(".tabs").hidden = false;
  open(tabs.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash) || tabs[0]);
}

// The browser's theme holds until the reader chooses one; a page that is opened from a file may be unable to store the choice.
function startTheme() {
  const button = $("#theme");
  const remember = (theme) => { try { localStorage.setItem("polycert-theme", theme); } catch { /* not allowed */ } };
  const remembered = () => { try { return localStorage.getItem("polycert-theme"); } catch { return null; } };
  const wish = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : wish.matches);
  const tell = () => {
    button.setAttribute("aria-pressed", String(dark()));
    $("span", button).textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", "Dark theme");
  };
  if (remembered()) document.documentElement.dataset.theme = remembered();
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    remember(document.documentElement.dataset.theme);
    tell();
  });
  wish.addEventListener("change", tell);
  button.hidden = false;
  tell();
}

startTheme();
$(".hero").hidden = false;
$(".pick").hidden = DATA.models.length < 2;
startSamples();
startRecords();
select(0);
startTabs();
$("#model").addEventListener("change", (event) => select(Number(event.target.value)));
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return;
  width = innerWidth;
  showCharts(DATA.models[current]);
});
performance.mark("ready");
