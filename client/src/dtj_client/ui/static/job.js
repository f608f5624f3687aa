// The page of one job.

import { heatMap, lineChart, timelineBar } from "./chart.js";
import { h, keyed, setText } from "./dom.js";
import { clock, duration, percent, short, since } from "./format.js";
import { logView } from "./log.js";
import { ask } from "./server.js";

const ROWS = 50; // of replicas on a page
const SHARES = [
  ["productive", "productive"], ["startup", "start-up"], ["lost", "lost"], ["recovering", "recovering"], ["queued", "queued"],
];

export function jobPage(namespace, name) {
  const path = `job/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
  const phase = h("span", { class: "phase" });
  const headline = h("span", { class: "muted" });
  const message = h("p", { class: "message" });
  const advice = h("p", { class: "muted advice" });
  const facts = h("dl", { class: "facts" });
  const goodput = h("div", { class: "shares" });
  const bar = timelineBar();
  const marks = h("ol", { class: "marks" });
  const loss = lineChart("Loss by step", "step", short);
  const rate = lineChart("Samples per second", "at", (moment) => clock(new Date(moment).toISOString()));
  const heat = heatMap();
  const noHeat = h("p", { class: "muted" });
  const failures = h("div", {});
  const replicas = replicaTable();
  const log = logView(path);
  const events = h("tbody");
  const manifest = h("pre", { tabindex: 0, "aria-label": "Manifest as YAML" });
  const sections = {
    overview: section("Overview", facts, goodput),
    timeline: section("Timeline", bar.element, marks),
    curves: section("Curves", h("div", { class: "curves" }, loss.element, rate.element)),
    steps: section("Step time by rank", heat.element, noHeat),
    failures: section("Failures", failures),
    replicas: section("Replicas", replicas.element),
    log: section("Log", log.element),
    events: section("Events", h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {},
      ...["Last", "Type", "Reason", "Message"].map((title) => h("th", { scope: "col" }, title)))), events))),
    manifest: section("Manifest", h("details", {}, h("summary", {}, "YAML"), manifest)),
  };
  const buttons = Object.fromEntries(Object.entries(sections).map(([name, each]) => [name,
    h("button", { type: "button", "data-item": true,
      onclick: () => { each.scrollIntoView({ block: "start" }); each.querySelector("h2").focus({ preventScroll: true }); },
    }, each.getAttribute("aria-label"))]));
  const contents = h("nav", { class: "contents", "aria-label": "Parts of the page" }, ...Object.values(buttons));
  const element = h("article", {},
    h("p", { class: "crumbs" }, h("a", { href: "#/" }, "All jobs"), ` / ${namespace}`),
    h("div", { class: "title" }, h("h1", {}, name), phase, headline),
    message, advice, contents, ...Object.values(sections));
  document.title = `${name} – training job`;

  function show(found) {
    const { job, timeline } = found;
    setText(phase, job.phase || "New");
    phase.className = `phase ${job.phase.toLowerCase()}`;
    setText(headline, job.ended ? `${since(job.ended)} ago` : job.since ? `for ${since(job.since)}` : "");
    setText(message, found.message);
    setText(advice, found.advice && `Next: ${found.advice}`);
    showFacts(found);
    showShares(found.goodput);
    bar.show(timeline, job.ended);
    keyed(marks, [...timeline.marks].reverse(), (mark) => JSON.stringify(mark), markLine);
    loss.show(found.curves.loss);
    rate.show(found.curves.rate.map(([at, value]) => [Date.parse(at), value]));
    const hasHeat = found.heat.times.length > 0;
    heat.element.hidden = !hasHeat;
    if (hasHeat) heat.show(found.heat);
    setText(noHeat, found.slow || (hasHeat ? "" : found.heat.problem
      ? `Step times come from the agents, which cannot be asked: ${found.heat.problem}.`
      : job.ended ? "None: the agents report them only while the job runs."
      : "None yet: the agents of a running job report the steps of each rank, if the program runs under dtj."));
    noHeat.classList.toggle("bad", Boolean(found.slow));
    setHidden("failures", !found.failures.length);
    keyed(failures, found.failures, (each) => each.at + each.cause, failureBox);
    replicas.show(found.replicas);
    keyed(events, [...found.events].reverse(), (each) => each.at + each.reason + each.message, eventLine);
    setHidden("events", !found.events.length);
    setText(manifest, found.manifest);
  }

  function setHidden(name, hidden) {
    sections[name].hidden = hidden;
    buttons[name].hidden = hidden;
  }

  function showFacts({ job, attempt, ranks }) {
    const shown = [
      ["Step", job.step], ["Loss", short(job.loss)], ["Samples/s", short(job.rate)], ["Goodput", percent(job.goodput)],
      ["Done at about", job.phase === "Running" ? clock(job.eta) : ""], ["Ready", job.ready], ["Ranks", ranks],
      ["Restarts", job.restarts], ["Attempt", attempt], ["Age", since(job.created)],
    ].filter(([, value]) => value !== "" && value !== null && value !== "–" && value !== undefined);
    keyed(facts, shown, ([title]) => title, ([title]) => {
      const value = h("dd", {});
      const box = h("div", {}, h("dt", {}, title), value);
      box.show = ([, text]) => setText(value, text);
      return box;
    });
  }

  function showShares(seconds) {
    const all = SHARES.reduce((sum, [key]) => sum + (seconds[key] ?? 0), 0);
    goodput.hidden = !all;
    if (!all) return;
    const stack = h("div", { class: "stack", "aria-hidden": "true" });
    const legend = h("ul", { class: "legend", "aria-label": "Where the time went" });
    for (const [key, title] of SHARES) {
      if (!seconds[key]) continue;
      const part = h("span", { class: `share ${key}` });
      part.style.width = `${(100 * seconds[key]) / all}%`;
      stack.append(part);
      legend.append(h("li", { class: `share ${key}` }, `${title} ${duration(seconds[key])} (${percent((100 * seconds[key]) / all)})`));
    }
    goodput.replaceChildren(stack, legend);
  }

  return {
    element,
    problem: null,
    async refresh() {
      const found = await ask(path);
      this.problem = found.problem;
      setText(document.getElementById("where"), [found.context, namespace].filter(Boolean).join(" / "));
      show(found);
      await log.refresh(found.replicas.length);
    },
  };
}

function section(title, ...children) {
  return h("section", { class: "card", "aria-label": title }, h("h2", { tabindex: -1 }, title), ...children);
}

function markLine({ at, kind, title, text }) {
  const line = h("li", { class: kind }, h("time", { datetime: at, title: at }, clock(at)), h("strong", {}, title), h("span", {}, text));
  line.show = () => {};
  return line;
}

function failureBox({ at, cause, attempt, message }) {
  const box = h("details", {},
    h("summary", {}, h("strong", {}, cause), h("span", { class: "muted" },
      ` ${clock(at)}${attempt === null ? "" : `, attempt ${attempt}`}`)),
    h("pre", { tabindex: 0, "aria-label": "End of the traceback or log" }, message || "No message."));
  box.show = () => {};
  // It is shown before it is inserted: only then is it known whether it is the latest one.
  queueMicrotask(() => { if (!box.previousElementSibling) box.open = true; });
  return box;
}

function eventLine({ at }) {
  const cells = Array.from({ length: 4 }, () => h("td"));
  const line = h("tr", {}, ...cells);
  line.show = ({ type, reason, message, count }) => {
    [clock(at), type, reason, count > 1 ? `${message} (${count} times)` : message]
      .forEach((text, index) => setText(cells[index], text));
    line.className = type === "Warning" ? "warning" : "";
  };
  return line;
}

/** States of all replicas as squares, and a table of those that match, page by page. */
function replicaTable() {
  let all = [], first = 0;
  const summary = h("p", { class: "muted", role: "status" });
  const filter = h("input", { type: "search", placeholder: "Filter by number, state or node", "aria-label": "Filter replicas",
    oninput: () => { first = 0; draw(); } });
  const squares = h("div", { class: "squares", "aria-hidden": "true" });
  const body = h("tbody");
  const before = h("button", { type: "button", onclick: () => { first -= ROWS; draw(); } }, "Previous");
  const after = h("button", { type: "button", onclick: () => { first += ROWS; draw(); } }, "Next");
  const pages = h("nav", { class: "pages", "aria-label": "Pages of replicas" }, before, after);
  const titles = ["Replica", "State", "Node", "Restarts of the container", "Started"];
  const table = h("table", {}, h("thead", {}, h("tr", {}, ...titles.map((title) => h("th", { scope: "col" }, title)))), body);
  const element = h("div", {}, h("div", { class: "tools" }, filter, summary), squares, h("div", { class: "scroll" }, table), pages);

  function draw() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = all.filter((each) => words.every((word) =>
      /^\d+$/.test(word) ? String(each.replica) === word : `${each.state} ${each.node}`.toLowerCase().includes(word)));
    // What is wrong comes first.
    found.sort((a, b) => b.bad - a.bad || a.replica - b.replica);
    if (first >= found.length) first = 0;
    keyed(body, found.slice(first, first + ROWS), (each) => each.replica, () => {
      const cells = Array.from({ length: 5 }, () => h("td"));
      const line = h("tr", {}, ...cells);
      line.show = (each) => {
        [each.replica, each.state, each.node || "–", each.restarts, each.started ? `${since(each.started)} ago` : "–"]
          .forEach((text, index) => setText(cells[index], text));
        line.className = each.bad ? "warning" : "";
      };
      return line;
    });
    const states = new Map();
    for (const each of all) states.set(each.state, (states.get(each.state) ?? 0) + 1);
    const numbers = [...states].sort((a, b) => b[1] - a[1]).map(([state, number]) => `${number} ${state}`).join(", ");
    const part = found.length > ROWS ? `${first + 1} to ${Math.min(first + ROWS, found.length)} of ${found.length}; ` : "";
    setText(summary, part + numbers);
    pages.hidden = found.length <= ROWS;
    before.disabled = first === 0;
    after.disabled = first + ROWS >= found.length;
  }

  return {
    element,
    show(replicas) {
      all = replicas;
      squares.hidden = all.length < 9;
      if (!squares.hidden)
        keyed(squares, all, (each) => each.replica, (each) => {
          const square = h("span", {});
          square.show = ({ replica, state, node, bad }) => {
            const kind = bad ? (state === "no pod" || state === "Pending" ? "waiting" : "bad") : state.toLowerCase();
            if (square.className !== kind) square.className = kind;
            const title = `replica ${replica}: ${state}${node ? ` on ${node}` : ""}`;
            if (square.title !== title) square.title = title;
          };
          return square;
        });
      draw();
    },
  };
}
