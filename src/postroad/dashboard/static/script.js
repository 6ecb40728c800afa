"use strict";
// Every page works without this script. It logs in by link, switches the theme, updates numbers and adds shortcuts.
(() => {
  const root = document.documentElement;
  const remembered = localStorage.getItem("theme");
  if (remembered === "dark" || remembered === "light") root.dataset.theme = remembered;

  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const number = (value) => value.toLocaleString("en-US");
  const seconds = (length) => {
    for (const [name, size] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) if (length >= size) return `${Math.floor(length / size)} ${name}`;
    return "0 s";
  };

  const logIn = () => {
    const login = document.querySelector("form[data-login]");
    if (!login || location.hash.length < 2) return;
    login.token.value = decodeURIComponent(location.hash.slice(1));
    history.replaceState(null, "", location.pathname);
    login.submit();
  };

  const switchTheme = () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("theme", root.dataset.theme);
  };

  const addShortcuts = () => {
    const shortcuts = document.querySelector("dialog[data-shortcuts]");
    shortcuts.querySelector("[data-close]").addEventListener("click", () => shortcuts.close());
    document.addEventListener("keydown", (event) => {
      if (event.target.matches("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
      const search = document.querySelector("main [data-search]") || document.querySelector("[data-find]");
      if (event.key === "/" && search) { event.preventDefault(); search.focus(); }
      if (event.key === "?" && !shortcuts.open) { event.preventDefault(); shortcuts.showModal(); }
    });
  };

  // Live numbers: `data-live`, and `data-tally` in the navigation, are paths into the overview.
  const at = (overview, path) => path.split(".").reduce((value, name) => (value == null ? value : value[name]), overview);
  const showNumbers = (overview) => {
    for (const element of all("[data-live], [data-tally]")) {
      const value = at(overview, element.dataset.live || element.dataset.tally);
      if (value === undefined) continue;
      element.textContent = value === null ? "–" : typeof value !== "number" ? String(value) : element.dataset.format === "seconds" ? seconds(value) : number(value) + (value === Number(element.dataset.most) ? "+" : "");
      element.toggleAttribute("data-zero", !value);
    }
  };

  const showAttention = (overview) => {
    const place = document.querySelector("[data-attentions]");
    if (!place) return;
    const list = place.querySelector("ul");
    const seen = JSON.stringify(overview.attention);
    if (place.dataset.seen === seen) return;
    place.dataset.seen = seen;
    const focused = all("a", list).indexOf(document.activeElement);
    list.replaceChildren(...overview.attention.map((item) => {
      const entry = document.createElement("li"), link = document.createElement("a");
      link.dataset.attention = item.kind;
      link.dataset.severity = item.severity;
      link.href = item.href;
      link.textContent = item.text;
      entry.append(link);
      return entry;
    }));
    if (focused >= 0) all("a", list)[Math.min(focused, overview.attention.length - 1)]?.focus();
    list.hidden = !overview.attention.length;
    place.querySelector(".well").hidden = !list.hidden;
  };

  // Charts, on the same grid as `charts.py`.
  const WIDTH = 600, HEIGHT = 96;
  const short = (value) => String(Math.round(value * 10) / 10);
  const topOf = (values) => {
    const most = Math.max(0, ...values);
    for (let size = 1; ; size *= 10) for (const factor of [1, 2, 5]) if (most <= factor * size) return factor * size;
  };
  const bars = (values, top) => {
    const step = WIDTH / values.length, gap = Math.min(2, step / 4);
    return values.map((value, index) => (value ? `M${short(index * step)} ${HEIGHT}V${short(HEIGHT - Math.max(2, (value / top) * HEIGHT))}h${short(step - gap)}V${HEIGHT}z` : "")).join("");
  };
  const area = (values, top) => {
    const step = WIDTH / Math.max(1, values.length - 1);
    return `M0 ${HEIGHT}L${values.map((value, index) => `${short(index * step)} ${short(HEIGHT - (value / top) * (HEIGHT - 2))}`).join("L")}L${WIDTH} ${HEIGHT}z`;
  };
  let slot = null;
  const showCharts = (overview) => {
    const now = Math.floor(Date.parse(overview.at) / 1000 / overview.step_seconds);
    for (const chart of all("svg[data-chart]")) {
      const kind = chart.dataset.chart, flows = kind !== "backlog";
      let values = flows ? overview.series[kind] : chart.dataset.values.split(" ").map(Number);
      if (!flows) {
        const waiting = overview.backlog.visible + overview.backlog.in_flight + overview.backlog.delayed;
        values = slot !== null && now > slot ? [...values.slice(1), waiting] : [...values.slice(0, -1), waiting];
      }
      if (!values.length) continue;
      const top = topOf(values), latest = values[values.length - 1];
      const figure = flows ? values.reduce((sum, value) => sum + value, 0) : latest;
      chart.dataset.values = values.join(" ");
      chart.firstElementChild.setAttribute("d", flows ? bars(values, top) : area(values, top));
      chart.setAttribute("aria-label", chart.getAttribute("aria-label").replace(/: [\d,]+/, `: ${number(figure)}`).replace(/[\d,]+ latest/, `${number(latest)} latest`));
      document.querySelector(`[data-figure="${kind}"]`).textContent = number(figure);
      document.querySelector(`[data-top="${kind}"]`).textContent = number(top);
    }
    slot = now;
  };

  const listen = () => {
    const notice = document.querySelector("[data-stream]");
    const length = document.querySelector("[data-window]")?.dataset.window || 300;
    let pause = 1000, source = null;
    const open = () => {
      source = new EventSource(`/live?window=${length}`);
      source.addEventListener("overview", (event) => {
        const overview = JSON.parse(event.data);
        pause = 1000;
        notice.hidden = true;
        showNumbers(overview);
        showAttention(overview);
        showCharts(overview);
      });
      source.onerror = () => {
        source.close();
        notice.textContent = "Reconnecting …";
        notice.hidden = false;
        setTimeout(open, pause);
        pause = Math.min(2 * pause, 10000);
      };
    };
    addEventListener("pagehide", () => source.close());
    addEventListener("pageshow", (event) => { if (event.persisted) open(); });
    open();
  };

  // Pieces that no stream tells: fetch the page again every `data-refresh` seconds while somebody looks at it.
  const refresh = () => {
    const pieces = all("[data-refresh]");
    if (!pieces.length) return;
    const wait = Math.min(...pieces.map((piece) => Number(piece.dataset.refresh)));
    // What somebody uses or has unfolded stays as it is.
    const isUsed = (piece) => piece.contains(document.activeElement) || piece.querySelector("details[open]");
    setTimeout(async () => {
      try {
        const answer = document.hidden || pieces.every(isUsed) ? null : await fetch(location.href, { redirect: "error" });
        if (answer?.ok) {
          const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
          for (const piece of pieces) {
            const found = fresh.getElementById(piece.id);
            if (found && !isUsed(piece)) piece.replaceWith(found);
          }
        }
      } catch { /* The server is away: the stream says so, and the next attempt follows. */ }
      refresh();
    }, 1000 * wait);
  };

  addEventListener("DOMContentLoaded", () => {
    logIn();
    // A link that is opened in a window of this page changes only the fragment.
    addEventListener("hashchange", logIn);
    for (const button of all("button[data-theme-toggle]")) button.addEventListener("click", switchTheme);
    addShortcuts();
    if (document.querySelector("[data-live], [data-tally]")) listen();
    refresh();
  });
})();
