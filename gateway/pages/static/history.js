// The last 24 hours: times to first token, requests, failures, switches and states of replicas, over one axis of time.

import { count, milliseconds, shape, ticks } from "./dom.js";

const SPANS_H = [1, 3, 6, 12, 24];
const STEPS_MIN = [5, 15, 30, 60, 120, 180, 360];
const TOP = 36; // for the names of switches
const PLOT = 190; // height of the times
const ROW = 34; // height of requests and of failures
const STRIP = 18;
const STRIPS_MAX = 12;
const TICK_PX = 58; // between two labels of the time axis
const STATES = { ".": ["good", "in use"], s: ["slow", "slow"], o: ["out", "taken out"], b: ["bad", "failing"] };

const clock = (s) => new Date(1000 * s).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });

// Draw the history of a model. `history` is the document of GET /admin/history, `on` the present switch of hedging.
export function drawHistory(plot, history, on) {
  const width = Math.max(300, plot.parentElement.clientWidth);
  const left = width < 560 ? 64 : 92;
  const end_s = history.begin_s + history.window_s * history.requests.length;
  const known_h = (end_s - Math.max(history.begin_s, history.known_from_s)) / 3600;
  const hours = SPANS_H.find((each) => each >= known_h) ?? 24;
  const from = Math.max(0, history.requests.length - Math.round((hours * 3600) / history.window_s));
  const begin_s = history.begin_s + from * history.window_s;
  const x = (s) => left + ((s - begin_s) / (end_s - begin_s)) * (width - left - 8);
  const at = (index) => x(history.begin_s + index * history.window_s);
  const indices = history.requests.map((_, index) => index).slice(from);
  const frame = { plot, history, indices, at, x, left, width, begin_s, end_s };

  plot.replaceChildren();
  let y = drawTimes(frame, TOP);
  y = drawBars(frame, y + 14, "Requests", [["quiet", history.requests]], history.requests, (n) => `${count(n)} in 5 min`);
  y = drawBars(frame, y + 12, "Failed", [["bad", history.failed], ["slow", history.limited]], history.requests.map(() => 0),
    (n) => `${count(n)} in 5 min`);
  y = drawSwitch(frame, y + 10, on);
  y = drawStates(frame, y + 4);
  drawClock(frame, y + 14, hours);
  plot.setAttribute("viewBox", `0 0 ${width} ${y + 24}`);
  plot.setAttribute("height", y + 24);
  drawTips(frame, y);
}

function label(frame, y, text) {
  const most = frame.left < 90 ? 8 : 12;
  const shown = text.length > most ? `${text.slice(0, most - 1)}…` : text;
  frame.plot.append(shape("text", { x: 0, y, class: "name" }, shown, text));
}

function drawTimes(frame, top) {
  const { plot, history, indices, at, left, width } = frame;
  plot.append(shape("text", { x: 0, y: 12, class: "name" }, "Time to first token"));
  const values = indices.flatMap((index) => {
    const { p50, p99, p99_without } = history.ttft[index];
    return [p50, p99, p99_without].filter((ms) => ms !== null);
  });
  const bottom = top + PLOT;
  if (!values.length) {
    plot.append(shape("text", { x: (left + width) / 2, y: top + PLOT / 2, "text-anchor": "middle" }, "No request yet"));
    return bottom;
  }
  const low = Math.log(Math.min(...values) * 0.8);
  const high = Math.max(Math.log(Math.max(...values) * 1.25), low + 1);
  const y = (ms) => bottom - ((Math.log(ms) - low) / (high - low)) * PLOT;
  for (const ms of ticks(Math.exp(low), Math.exp(high), 6)) {
    plot.append(shape("line", { x1: left, x2: width - 8, y1: y(ms), y2: y(ms) }));
    plot.append(shape("text", { x: left - 6, y: y(ms) + 4, "text-anchor": "end" }, milliseconds(ms)));
  }
  for (const index of indices) {
    const { p99, p99_without: without } = history.ttft[index];
    if (p99 !== null && without !== null && without > 1.1 * p99) {
      plot.append(shape("rect", {
        class: "saved", x: at(index), width: at(index + 1) - at(index), y: y(without), height: y(p99) - y(without),
      }));
    }
  }
  for (const [name, field] of [["without", "p99_without"], ["p99", "p99"], ["p50", "p50"]]) {
    plot.append(shape("path", { class: `step ${name}`, d: steps(frame, (index) => times(history.ttft[index])[field], y) }));
  }
  return bottom;
}

// The estimate without hedging has chance in it: hedging does not make the p99 larger.
const times = (ttft) => ({ ...ttft, p99_without: ttft.p99 === null ? null : Math.max(ttft.p99, ttft.p99_without ?? 0) });

// Return the path of a value for each window; windows without one are gaps.
function steps({ indices, at }, value, y) {
  let path = "";
  let joined = false;
  for (const index of indices) {
    const found = value(index);
    if (found === null) {
      joined = false;
      continue;
    }
    const height = y(found).toFixed(1);
    path += `${joined ? "L" : "M"}${at(index).toFixed(1)} ${height}L${at(index + 1).toFixed(1)} ${height}`;
    joined = true;
  }
  return path || "M0 0";
}

function drawBars(frame, top, name, layers, scale, words) {
  const { plot, indices, at, left, width } = frame;
  const bottom = top + ROW;
  const sums = indices.map((index) => Math.max(scale[index], layers.reduce((sum, [, counts]) => sum + counts[index], 0)));
  const most = Math.max(...sums);
  label(frame, top + 12, name);
  plot.append(shape("line", { x1: left, x2: width - 8, y1: bottom, y2: bottom }));
  plot.append(shape("text", { x: left + 4, y: top + 8 }, most ? `up to ${words(most)}` : "none"));
  for (const index of indices) {
    let base = bottom;
    for (const [kind, counts] of layers) {
      if (!counts[index]) continue;
      const height = Math.max(2, (counts[index] / most) * (ROW - 12));
      base -= height;
      plot.append(shape("rect", { class: kind, x: at(index) + 0.5, width: Math.max(1, at(index + 1) - at(index) - 1), y: base, height }));
    }
  }
  return bottom;
}

function drawSwitch(frame, top, on) {
  const { plot, history, x, begin_s, end_s } = frame;
  const uses = history.switches.filter(({ replica }) => replica === null);
  label(frame, top + 13, "Hedging");
  let until_s = end_s;
  let state = on;
  for (const use of [...uses].reverse()) {
    drawSpan(plot, x(Math.max(use.at_s, begin_s)), x(until_s), top + 9, state);
    until_s = Math.max(use.at_s, begin_s);
    state = !use.on;
  }
  drawSpan(plot, x(Math.max(begin_s, Math.min(history.known_from_s, until_s))), x(until_s), top + 9, state);
  let free = 0; // end of the last name: a name that would cover it is left out
  for (const { at_s, on: turned } of uses.filter(({ at_s }) => at_s >= begin_s)) {
    plot.append(shape("line", { class: "use", x1: x(at_s), x2: x(at_s), y1: TOP - 6, y2: top + 15 }));
    const late = x(at_s) > frame.width - 70;
    if (x(at_s) < free) continue;
    free = x(at_s) + 76;
    plot.append(shape("text", { x: x(at_s) + (late ? -4 : 4), y: TOP - 8, "text-anchor": late ? "end" : "start" }, `${turned ? "on" : "off"} ${clock(at_s)}`));
  }
  return top + STRIP;
}

function drawSpan(plot, from, to, y, on) {
  if (to - from < 0.5) return;
  plot.append(shape("line", { class: on ? "on" : "off", x1: from, x2: to, y1: y, y2: y }, "", on ? "hedging on" : "hedging switched off"));
  if (!on && to - from > 40) plot.append(shape("text", { class: "offword", x: from + 6, y: y - 3 }, "off"));
}

function drawStates(frame, top) {
  const { plot, history, indices, at, left } = frame;
  const all = Object.entries(history.states).map(([name, letters]) => [name, letters]);
  const trouble = ([, letters]) => [...letters.slice(indices[0])].filter((letter) => "sob".includes(letter)).length;
  all.sort((one, other) => trouble(other) - trouble(one));
  const listed = all.length > STRIPS_MAX ? all.filter(trouble).slice(0, STRIPS_MAX) : all;
  let y = top;
  for (const [name, letters] of listed) {
    label(frame, y + 13, name);
    for (let index = indices[0]; index < letters.length;) {
      let next = index + 1;
      while (next < letters.length && letters[next] === letters[index]) next += 1;
      const state = STATES[letters[index]];
      if (state) {
        plot.append(shape("rect", { class: state[0], x: at(index), width: at(next) - at(index), y: y + 4, height: 10 }, "", `${name}: ${state[1]}`));
      }
      index = next;
    }
    y += STRIP;
  }
  const rest = all.length - listed.length;
  if (rest) {
    plot.append(shape("text", { x: left, y: y + 13 }, `${listed.length ? "and " : ""}${rest} replicas, ${all.filter(trouble).length > listed.length ? "some in trouble" : "always in use"}`));
    y += STRIP;
  }
  return y;
}

function drawClock({ plot, x, begin_s, end_s, width, left }, y, hours) {
  const step_min = STEPS_MIN.find((each) => ((width - left) * each) / (60 * hours) >= TICK_PX) ?? 360;
  const offset_s = 60 * new Date().getTimezoneOffset();
  const first = Math.ceil((begin_s - offset_s) / (60 * step_min)) * 60 * step_min + offset_s;
  for (let s = first; s <= end_s; s += 60 * step_min) {
    if (x(s) < left + 14 || x(s) > width - 24) continue;
    plot.append(shape("text", { x: x(s), y, "text-anchor": "middle" }, clock(s)));
    plot.append(shape("line", { x1: x(s), x2: x(s), y1: y - 14, y2: y - 10 }));
  }
}

function drawTips({ plot, history, indices, at }, bottom) {
  for (const index of indices) {
    if (!history.requests[index]) continue;
    const { p50, p99, p99_without: without, hidden } = history.ttft[index];
    const text = [
      `${clock(history.begin_s + index * history.window_s)}, 5 minutes: ${count(history.requests[index])} requests`,
      `first token p50 ${milliseconds(p50)}, p99 ${milliseconds(p99)}`,
      `p99 without hedging ${hidden ? "at least " : ""}${milliseconds(without)} (estimate)`,
      `${count(history.hedged[index])} hedged, ${count(history.won[index])} won by the hedge`,
      `${count(history.failed[index])} failed, ${count(history.limited[index])} got a 429`,
    ].join("\n");
    plot.append(shape("rect", { class: "tip", x: at(index), width: at(index + 1) - at(index), y: 0, height: bottom }, "", text));
  }
}
