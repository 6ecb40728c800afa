"use strict";
// Every page works without this script. It logs in by link, switches the theme, updates numbers and adds shortcuts.
(() => {
  const root = document.documentElement;
  const all = (selector) => [...document.querySelectorAll(selector)];
  const remembered = localStorage.getItem("theme");
  if (remembered) root.dataset.theme = remembered;

  const login = document.querySelector("form[data-login]");
  if (login && location.hash.length > 1) {
    login.token.value = decodeURIComponent(location.hash.slice(1));
    history.replaceState(null, "", location.pathname);
    login.submit();
  }

  for (const button of all("button[data-theme-toggle]")) {
    button.addEventListener("click", () => {
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
      localStorage.setItem("theme", root.dataset.theme);
    });
  }

  const shortcuts = document.querySelector("dialog[data-shortcuts]");
  document.addEventListener("keydown", (event) => {
    if (event.target.matches("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
    const search = document.querySelector("[data-search]");
    if (event.key === "/" && search) { event.preventDefault(); search.focus(); }
    if (event.key === "?") { event.preventDefault(); shortcuts.showModal(); }
  });

  const at = (document_, path) => path.split(".").reduce((value, name) => (value == null ? value : value[name]), document_);
  const show = (overview) => {
    for (const element of all("[data-live]")) {
      const value = at(overview, element.dataset.live);
      if (value === undefined) continue;
      const text = value === null ? "–" : typeof value === "number" ? value.toLocaleString("en-US") : String(value);
      if (element.textContent !== text) {
        element.textContent = text;
        element.classList.remove("changed");
        void element.offsetWidth;
        element.classList.add("changed");
      }
    }
    document.dispatchEvent(new CustomEvent("overview", { detail: overview }));
  };

  const notice = document.querySelector("[data-stream]");
  let pause = 1000;
  const listen = () => {
    const source = new EventSource("/live");
    source.addEventListener("overview", (event) => { pause = 1000; notice.hidden = true; show(JSON.parse(event.data)); });
    source.onerror = () => {
      source.close();
      notice.textContent = "Reconnecting …";
      notice.hidden = false;
      setTimeout(listen, pause);
      pause = Math.min(2 * pause, 10000);
    };
  };
  if (document.querySelector("nav [data-live], main [data-live]")) listen();
})();
