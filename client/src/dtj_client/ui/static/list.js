// The list of jobs.

import { h, keyed, setText } from "./dom.js";
import { percent, short, since } from "./format.js";
import { ask } from "./server.js";

const PAGE = 100; // rows; more would make the page slow
const PHASES = ["Running", "Recovering", "Starting", "Pending", "Suspended", "Terminating", "Failed", "Succeeded"];
const COLUMNS = [
  ["name", "Name"], ["phase", "Phase"], ["done", "Progress"], ["rate", "Samples/s"], ["loss", "Loss"],
  ["goodput", "Goodput"], ["restarts", "Restarts"], ["created", "Age"],
];
// What the user has chosen stays while a job is shown.
const chosen = { words: "", phase: "", sort: "created", down: false, first: 0 };

export function jobList() {
  let jobs = [], version = -1, namespace = "";
  const body = h("tbody");
  const count = h("p", { class: "muted", role: "status" });
  const empty = h("p", { class: "empty", hidden: true });
  const filter = h("input", {
    type: "search", placeholder: "Filter by name or problem", "aria-label": "Filter jobs", value: chosen.words,
    oninput: () => { chosen.words = filter.value; chosen.first = 0; show(); },
  });
  const phases = h("div", { class: "chips", role: "group", "aria-label": "Phase" });
  const heads = COLUMNS.map(([key, title]) => {
    const button = h("button", { type: "button", onclick: () => sortBy(key) }, title);
    return h("th", { scope: "col", class: key }, button);
  });
  const table = h("table", { class: "jobs" }, h("thead", {}, h("tr", {}, ...heads)), body);
  const before = h("button", { type: "button", onclick: () => turn(-PAGE) }, "Previous");
  const after = h("button", { type: "button", onclick: () => turn(PAGE) }, "Next");
  const pages = h("nav", { class: "pages", "aria-label": "Pages" }, before, after);
  const element = h("section", { "aria-label": "Jobs" },
    h("div", { class: "tools" }, filter, phases), count, table, empty, pages);
  const ages = setInterval(() => body.querySelectorAll("tr").forEach((row) => row.tick()), 1000);
  document.title = "Training jobs";

  function sortBy(key) {
    chosen.down = chosen.sort === key ? !chosen.down : !["name", "phase", "created"].includes(key);
    chosen.sort = key;
    show();
  }

  function turn(by) {
    chosen.first += by;
    show();
    scrollTo(0, 0);
  }

  function show() {
    const words = chosen.words.toLowerCase().split(/\s+/);
    const named = jobs.filter((job) => {
      const text = `${job.namespace}/${job.name} ${job.phase} ${job.problem}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    showPhases(named);
    const found = named.filter((job) => !chosen.phase || job.phase === chosen.phase).sort(order);
    if (chosen.first >= found.length) chosen.first = 0;
    const page = found.slice(chosen.first, chosen.first + PAGE);
    keyed(body, page, (job) => `${job.namespace}/${job.name}`, () => row(!namespace));
    heads.forEach((head, index) => {
      if (COLUMNS[index][0] === chosen.sort) head.setAttribute("aria-sort", chosen.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const part = found.length > PAGE ? `${chosen.first + 1} to ${chosen.first + page.length} of ` : "";
    setText(count, `${part}${found.length} ${found.length === 1 ? "job" : "jobs"}`);
    pages.hidden = found.length <= PAGE;
    before.disabled = chosen.first === 0;
    after.disabled = chosen.first + PAGE >= found.length;
    table.hidden = !found.length;
    empty.hidden = found.length > 0 || version < 0;
    setText(empty, jobs.length ? "No job matches the filter." : "No jobs here yet. Submit one: kubectl dtj submit -- train.py");
  }

  function showPhases(named) {
    const numbers = new Map(PHASES.map((phase) => [phase, 0]));
    for (const job of named) numbers.set(job.phase, (numbers.get(job.phase) ?? 0) + 1);
    const present = PHASES.filter((phase) => numbers.get(phase) || phase === chosen.phase);
    keyed(phases, ["", ...present], (phase) => phase, (phase) => {
      const button = h("button", { type: "button", class: `chip ${phase.toLowerCase()}`,
        onclick: () => { chosen.phase = chosen.phase === phase ? "" : phase; chosen.first = 0; show(); } });
      button.show = () => {
        setText(button, phase ? `${phase} ${numbers.get(phase)}` : `All ${named.length}`);
        button.setAttribute("aria-pressed", chosen.phase === phase);
      };
      return button;
    });
  }

  return {
    element,
    problem: null,
    async refresh() {
      const answer = await ask("jobs", { after: version });
      if (!answer) {
        this.problem = null;
        return;
      }
      ({ jobs, version, namespace } = answer);
      this.problem = answer.problem && `The list may be old: ${answer.problem}`;
      setText(document.getElementById("where"),
        [answer.context, namespace || "all namespaces"].filter(Boolean).join(" / "));
      show();
    },
    close: () => clearInterval(ages),
  };
}

function order(one, other) {
  const way = chosen.down ? -1 : 1;
  const [a, b] = [sortable(one), sortable(other)];
  if (a !== b) {
    // What is unknown comes last, in both directions.
    if (a === null || a === "") return 1;
    if (b === null || b === "") return -1;
    return (a < b ? -1 : 1) * way;
  }
  return one.name < other.name ? -1 : 1;
}

function sortable(job) {
  return chosen.sort === "created" ? -Date.parse(job.created) : job[chosen.sort]; // the age
}

function row(withNamespace) {
  const link = h("a", { "data-item": true });
  const place = h("span", { class: "muted" });
  const phase = h("span", { class: "phase" });
  const problem = h("span", { class: "problem" });
  const bar = h("progress", { max: 1 });
  const step = h("span", { class: "muted" });
  const cells = Object.fromEntries(COLUMNS.map(([key, title]) => [key, h("td", { class: key, "data-title": title })]));
  cells.name.append(link, place, problem);
  cells.phase.append(phase);
  cells.done.append(bar, step);
  const element = h("tr", {}, ...Object.values(cells));
  let shown = null;
  element.tick = () => shown && setText(cells.created, since(shown.created));
  element.show = (job) => {
    shown = job;
    link.href = `#/job/${encodeURIComponent(job.namespace)}/${encodeURIComponent(job.name)}`;
    setText(link, job.name);
    setText(place, withNamespace ? job.namespace : "");
    setText(phase, job.phase || "New");
    phase.className = `phase ${job.phase.toLowerCase()}`;
    setText(problem, job.problem);
    problem.title = job.problem;
    bar.hidden = job.done === null;
    bar.value = job.done ?? 0;
    bar.setAttribute("aria-label", `Progress of ${job.name}`);
    setText(step, job.step || "–");
    setText(cells.rate, short(job.rate));
    setText(cells.loss, short(job.loss));
    setText(cells.goodput, percent(job.goodput));
    setText(cells.restarts, job.restarts);
    element.tick();
  };
  return element;
}
