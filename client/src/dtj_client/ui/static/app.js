// Chooses the page by the address: #/ is the list, #/job/NAMESPACE/NAME is one job.

import { setText } from "./dom.js";
import { jobPage } from "./job.js";
import { jobList } from "./list.js";

const POLL_MS = 2000;
const main = document.getElementById("main");
const live = document.getElementById("live");
let page = null;
let timer = 0;

function route() {
  const [, kind, namespace, name] = location.hash.slice(1).split("/").map(decodeURIComponent);
  page?.close?.();
  page = kind === "job" && name ? jobPage(namespace, name) : jobList();
  scrollTo(0, 0);
  main.replaceChildren(page.element);
  refresh();
}

/** Ask the server again, then in two seconds; not while nobody sees the page. */
async function refresh() {
  clearTimeout(timer);
  const asked = page;
  if (!document.hidden) {
    try {
      await asked.refresh();
      report(asked.problem);
    } catch (error) {
      report(error.message, true);
    }
  }
  if (asked === page) timer = setTimeout(refresh, POLL_MS);
}

function report(problem, ended = false) {
  const box = document.getElementById("problem");
  box.hidden = !problem;
  setText(box, problem ?? "");
  setText(live, problem ? (ended ? "not connected" : "not current") : "live");
  live.className = problem ? "bad" : "good";
}

document.addEventListener("visibilitychange", () => document.hidden || refresh());
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, select, textarea");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    if (typing && event.target.value) return;
    if (typing) event.target.blur();
    else if (location.hash.length > 2) location.hash = "#/";
  } else if (event.key === "/" && !typing) {
    event.preventDefault();
    document.querySelector("input[type=search]")?.focus();
  } else if (!typing && (event.key === "j" || event.key === "k")) {
    move(event.key === "j" ? 1 : -1);
  }
});

/** Focus the next or previous link of the list. */
function move(by) {
  const links = [...main.querySelectorAll("[data-item]:not([hidden])")];
  const now = links.indexOf(document.activeElement);
  links[now < 0 ? (by > 0 ? 0 : links.length - 1) : Math.min(links.length - 1, Math.max(0, now + by))]?.focus();
}

// The address of the link would be that of another page.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", route);
route();
