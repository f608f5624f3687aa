// The merged log of some replicas, read on while it can be seen.

import { h, setText } from "./dom.js";
import { ask } from "./server.js";

const KEPT = 5000; // lines on the page
const COLOURS = 6;

export function logView(path) {
  let log = "", last = 0, seen = false, asked = "", replicaCount = 0;
  const which = h("input", { type: "text", value: "", placeholder: "0-7", size: 10, "aria-label": "Replicas, such as 0-3,7",
    onchange: () => restart() });
  const filter = h("input", { type: "search", placeholder: "Filter lines", "aria-label": "Filter lines of the log", oninput: () => hide() });
  const follow = h("input", { type: "checkbox", checked: true, id: "follow" });
  const said = h("p", { class: "muted", role: "status" });
  const lines = h("div", { class: "log", tabindex: 0, role: "log", "aria-label": "Log", "aria-live": "off" });
  const element = h("div", {}, h("div", { class: "tools" }, h("label", {}, "Replicas ", which), filter,
    h("label", { for: "follow" }, follow, " follow"), said), lines);
  new IntersectionObserver(([entry]) => { seen = entry.isIntersecting; if (seen) read(); }).observe(element);

  function restart() {
    clear("");
    read();
  }

  function clear(id) {
    log = id;
    last = 0;
    lines.replaceChildren();
  }

  async function read() {
    const replicas = which.value.trim() || (replicaCount > 8 ? "0-7" : "");
    asked = replicas;
    try {
      const found = await ask(`${path}/log`, { replicas, log, after: last });
      if (asked !== replicas) return;
      if (found.log !== log) clear(found.log); // the server reads it from the start: the page was hidden, or this is another job
      if (found.lines.length && found.lines[0].number <= last) return; // another answer was first
      append(found.lines);
      setText(said, lines.childElementCount ? "" : "No lines yet.");
    } catch (error) {
      setText(said, error.message);
    }
  }

  function append(found) {
    if (!found.length) return;
    last = found.at(-1).number;
    const words = filter.value.toLowerCase();
    lines.append(...found.slice(-KEPT).map((each) => line(each, words)));
    while (lines.childElementCount > KEPT) lines.firstChild.remove();
    if (follow.checked) lines.scrollTop = lines.scrollHeight;
  }

  function hide() {
    const words = filter.value.toLowerCase();
    for (const each of lines.children) each.hidden = !each.lower.includes(words);
    if (follow.checked) lines.scrollTop = lines.scrollHeight;
  }

  return {
    element,
    async refresh(replicas) {
      replicaCount = replicas;
      if (seen) await read();
    },
  };
}

function line({ at, replica, rank, text }, words) {
  const element = h("div", { title: at },
    h("span", { class: `who colour${(rank ?? replica) % COLOURS}` }, String(replica)), text);
  element.lower = `${replica} ${text}`.toLowerCase();
  element.hidden = !element.lower.includes(words);
  return element;
}
