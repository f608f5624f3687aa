// A line chart, a timeline and a heat map, drawn without a library.

import { h, svg } from "./dom.js";
import { clock, duration, short } from "./format.js";

const WIDTH = 560, HEIGHT = 200, LEFT = 52, RIGHT = 12, TOP = 10, BOTTOM = 26;

/**
 * A curve. `show(points)` takes pairs of x and y; a y of null ends a line.
 * The arrow keys move from point to point; the value is read out.
 */
export function lineChart(title, nameOfX, formatX) {
  const drawing = svg("g");
  const cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  const dot = svg("circle", { class: "dot", r: 3.5, visibility: "hidden" });
  const value = h("output", { class: "muted" });
  const empty = h("p", { class: "empty" }, "No values.");
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: 0 }, drawing, cursor, dot);
  const element = h("figure", {}, h("figcaption", {}, h("h3", {}, title), value), picture, empty);
  let points = [], places = [], at = -1, drawn = "";

  function point(index) {
    at = Math.max(0, Math.min(points.length - 1, index));
    const [x, y] = places[at];
    for (const [mark, values] of [[cursor, { x1: x, x2: x }], [dot, { cx: x, cy: y }]])
      for (const [name, number] of Object.entries({ ...values, visibility: "visible" })) mark.setAttribute(name, number);
    value.textContent = `${nameOfX} ${formatX(points[at][0])}: ${short(points[at][1])}`;
  }

  function leave() {
    at = -1;
    cursor.setAttribute("visibility", "hidden");
    dot.setAttribute("visibility", "hidden");
    const last = points.at(-1);
    value.textContent = last ? `now ${short(last[1])}` : "";
  }

  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDTH;
    let best = 0;
    places.forEach((place, index) => { if (Math.abs(place[0] - x) < Math.abs(places[best][0] - x)) best = index; });
    if (places.length) point(best);
  });
  picture.addEventListener("pointerleave", leave);
  picture.addEventListener("blur", leave);
  picture.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !places.length) return;
    event.preventDefault();
    point(at < 0 ? points.length - 1 : at + by);
  });

  return {
    element,
    show(given) {
      const now = JSON.stringify(given);
      if (now === drawn) return;
      drawn = now;
      points = given.filter(([, y]) => y !== null);
      empty.hidden = points.length > 0;
      picture.toggleAttribute("hidden", !points.length);
      if (!points.length) return;
      const x = scale(points.map((each) => each[0]), LEFT, WIDTH - RIGHT, false);
      const y = scale(points.map((each) => each[1]), HEIGHT - BOTTOM, TOP, true);
      places = points.map(([a, b]) => [x.place(a), y.place(b)]);
      let line = "", next = "M";
      for (const [a, b] of given) {
        if (b === null) next = "M";
        else {
          line += `${next}${x.place(a).toFixed(1)} ${y.place(b).toFixed(1)}`;
          next = "L";
        }
      }
      drawing.replaceChildren(
        ...y.ticks.map((tick) => svg("g", { class: "tick" },
          svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y.place(tick), y2: y.place(tick) }),
          svg("text", { x: LEFT - 8, y: y.place(tick) + 4, "text-anchor": "end" }, short(tick)))),
        ...[x.low, x.high].map((tick, index) => svg("text",
          { class: "tick", x: x.place(tick), y: HEIGHT - 6, "text-anchor": index ? "end" : "start" }, formatX(tick))),
        svg("path", { class: "curve", d: line }));
      const all = points.map((each) => each[1]);
      picture.setAttribute("aria-label", `${title}: ${points.length} values, from ${short(all[0])} to ` +
        `${short(all.at(-1))}, lowest ${short(Math.min(...all))}, highest ${short(Math.max(...all))}. Arrow keys read them.`);
      if (at < 0) leave();
      else point(at);
    },
  };
}

function scale(values, from, to, rounded) {
  let low = Math.min(...values), high = Math.max(...values);
  const ticks = [];
  if (rounded) {
    if (low === high) [low, high] = [low - Math.abs(low || 1) / 2, high + Math.abs(high || 1) / 2];
    const rough = (high - low) / 4, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
    low = Math.floor(low / step) * step;
    high = Math.ceil(high / step) * step;
    for (let tick = low; tick <= high + step / 2; tick += step) ticks.push(Math.abs(tick) < step / 1e6 ? 0 : tick);
  }
  const span = high - low || 1;
  return { low, high, ticks, place: (value) => from + ((value - low) / span) * (to - from) };
}

/** The phases of a job as a bar, with a mark for each thing that happened. */
export function timelineBar() {
  const bar = h("div", { class: "bar", role: "img" });
  const ends = h("div", { class: "ends muted" });
  const element = h("div", { class: "timeline" }, bar, ends);
  return {
    element,
    show({ segments, marks }, ended) {
      const start = Date.parse(segments[0].from), end = ended ? Date.parse(ended) : Date.now();
      const span = Math.max(1000, end - start);
      const share = (moment) => Math.min(100, Math.max(0, ((Date.parse(moment) - start) / span) * 100));
      bar.replaceChildren(
        ...segments.map((each) => {
          const seconds = ((each.to ? Date.parse(each.to) : end) - Date.parse(each.from)) / 1000;
          const part = h("span", { class: `segment ${each.phase.toLowerCase()}`,
            title: `${each.phase}, ${duration(seconds)}, from ${clock(each.from)}` });
          part.style.left = `${share(each.from)}%`;
          part.style.width = `${(each.to ? share(each.to) : 100) - share(each.from)}%`;
          return part;
        }),
        ...marks.filter((mark) => mark.kind !== "note").map((mark) => {
          const tick = h("span", { class: `mark ${mark.kind}`, title: `${clock(mark.at)} ${mark.title}: ${mark.text}` });
          tick.style.left = `${share(mark.at)}%`;
          return tick;
        }));
      bar.setAttribute("aria-label", `Phases: ${segments.map((each) => each.phase).join(", ")}. The list below has the times.`);
      ends.replaceChildren(h("span", {}, clock(segments[0].from)), h("span", {}, ended ? clock(ended) : "now"));
    },
  };
}

/** Seconds of a step: a row for each rank, a column for each reading. */
export function heatMap() {
  const canvas = h("canvas", { role: "img" });
  const said = h("p", { class: "muted" });
  const element = h("div", { class: "heat" }, canvas, said);
  let drawn = "", heat = null;

  function cell(event) {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * heat.times.length);
    const row = Math.floor(((event.clientY - box.top) / box.height) * heat.ranks.length);
    const seconds = heat.seconds[column]?.[row];
    if (seconds !== undefined && seconds !== null)
      said.textContent = `rank ${heat.ranks[row]}, ${clock(heat.times[column])}: ${short(seconds)} s a step`;
  }

  canvas.addEventListener("pointermove", (event) => heat && cell(event));
  return {
    element,
    show(given) {
      const now = JSON.stringify([given.ranks.length, given.times]);
      if (now === drawn) return;
      drawn = now;
      heat = given;
      const { ranks, times, seconds } = given;
      const height = Math.max(1, Math.min(14, Math.floor(420 / ranks.length)));
      const width = Math.max(4, Math.floor(960 / Math.max(40, times.length)));
      canvas.width = width * times.length;
      canvas.height = height * ranks.length;
      canvas.style.height = `${canvas.height}px`; // few columns are stretched to the side only
      const all = seconds.flat().filter((each) => each !== null).sort((a, b) => a - b);
      const low = all[Math.floor(all.length * 0.02)], high = Math.max(all[Math.floor(all.length * 0.98)], low * 1.5);
      const context = canvas.getContext("2d");
      seconds.forEach((column, x) => column.forEach((value, y) => {
        if (value === null) return;
        context.fillStyle = colour(Math.min(1, Math.max(0, (value - low) / (high - low || 1))));
        context.fillRect(x * width, y * height, width - (width > 5 ? 1 : 0), height - (height > 5 ? 1 : 0));
      }));
      const latest = seconds.at(-1);
      const slowest = latest.reduce((best, value, row) => (value > (latest[best] ?? -1) ? row : best), 0);
      const text = `${ranks.length} ranks, ${short(low)} to ${short(all.at(-1))} s a step; ` +
        `slowest now: rank ${ranks[slowest]} with ${short(latest[slowest])} s`;
      said.textContent = text;
      canvas.setAttribute("aria-label", `Step times by rank: ${text}`);
    },
  };
}

/** From blue over yellow to red: readable on light and dark, and without colour vision by brightness. */
function colour(share) {
  const stops = [[46, 94, 170], [111, 170, 200], [245, 214, 110], [232, 120, 60], [190, 30, 45]];
  const place = share * (stops.length - 1), index = Math.min(stops.length - 2, Math.floor(place)), part = place - index;
  return `rgb(${stops[index].map((from, each) => Math.round(from + (stops[index + 1][each] - from) * part)).join()})`;
}
