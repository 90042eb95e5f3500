// Pictures of the moment: first tokens of the last minutes, and the attempts of a race.

import { element, milliseconds, seconds, shape, ticks } from "./dom.js";

const HEIGHT = 170; // of the dots; labels are below
const LEFT = 58;
const DOTS_MAX = 1500;

// Draw each request as a dot: across the time of its end, upwards its time to first token. `samples` are {at_s, ttft_s,
// backup}: backup is true if a backup won. `marks` are [name, seconds].
export function drawRequests(plot, samples, marks, window_s) {
  const width = Math.max(300, plot.parentElement.clientWidth);
  plot.setAttribute("viewBox", `0 0 ${width} ${HEIGHT + 24}`);
  plot.setAttribute("height", HEIGHT + 24);
  plot.replaceChildren();
  if (!samples.length) return;
  const times = samples.map(({ ttft_s }) => Math.max(ttft_s, 1e-3));
  const low = Math.log(Math.min(...times) * 0.7);
  const high = Math.max(Math.log(Math.max(...times) * 1.4), low + 1.2);
  const y = (s) => HEIGHT - ((Math.log(Math.max(s, 1e-3)) - low) / (high - low)) * (HEIGHT - 12);
  const newest = samples.at(-1).at_s;
  const right = width - 40;
  const x = (s) => right - ((newest - s) / window_s) * (right - LEFT);
  for (const ms of ticks(1000 * Math.exp(low), 1000 * Math.exp(high), 5)) {
    const height = y(ms / 1000);
    plot.append(shape("line", { x1: LEFT, x2: right, y1: height, y2: height }));
    plot.append(shape("text", { x: LEFT - 6, y: height + 4, "text-anchor": "end" }, milliseconds(ms)));
  }
  for (const { at_s, ttft_s, backup } of samples.slice(-DOTS_MAX)) {
    plot.append(shape("circle", { class: backup ? "second" : "first", cx: x(at_s), cy: y(ttft_s), r: backup ? 3.5 : 2.2 }));
  }
  let above = Infinity;
  for (const [name, s] of marks) { // from the lowest to the highest: a name that would cover another one is left out
    if (s === null) continue;
    plot.append(shape("line", { class: "mark", x1: LEFT, x2: right, y1: y(s), y2: y(s) }));
    if (above - y(s) >= 13) {
      plot.append(shape("text", { x: right + 4, y: y(s) + 4 }, name));
      above = y(s);
    }
  }
  for (let minute = 0; minute <= window_s / 60; minute += 1) {
    const at = x(newest - 60 * minute);
    const text = minute ? `−${minute} min` : "now";
    if (width < 560 && minute % 2) continue;
    plot.append(shape("text", { x: at, y: HEIGHT + 18, "text-anchor": minute * 60 >= window_s ? "start" : "middle" }, text));
  }
}

// A part of a bar, from and to in seconds of the request, on a scale that ends at `end`.
function part(name, from, to, end) {
  const made = element("i", { className: name });
  made.style.left = `${(100 * from) / end}%`;
  made.style.width = `${(100 * Math.max(0, Math.min(to, end) - from)) / end}%`;
  return made;
}

// One attempt in words, for readers who do not see the bars.
function told(attempt, isWinner) {
  const first = attempt.content_s === null ? "no first token" : `first token ${seconds(attempt.content_s)} later`;
  const outcome = isWinner ? "won" : attempt.outcome.replaceAll("_", " ");
  return `${attempt.role} on ${attempt.replica}, started after ${seconds(attempt.start_s)}, ${first}, ${outcome}`;
}

function attemptLine(attempt, isWinner, end) {
  const { start_s: start } = attempt;
  const over = start + attempt.end_s;
  const first = attempt.content_s === null ? over : start + attempt.content_s;
  const track = element("span", { className: "track" });
  track.setAttribute("role", "img");
  track.setAttribute("aria-label", told(attempt, isWinner));
  if (isWinner) track.append(part("waiting", start, first, end), part("won", first, over, end));
  else track.append(part("lost", start, over, end));
  const name = element("span", { title: told(attempt, isWinner) }, `${attempt.replica} (${attempt.role})`);
  return element("div", { className: attempt.role === "backup" ? "attempt backup" : "attempt" }, name, track);
}

const RESULTS = {
  primary: "the primary answered",
  backup_won: "the hedge won",
  backup_lost: "the primary won",
  denied: "late, without a hedge",
};

// Return an ended request as a list item: a line of text, and a bar per attempt. The scale ends a little after the first token
// and the end of the losers: the rest of the answer is cut off.
export function raceItem(ended) {
  const winner = ended.attempts.findLast((attempt) => attempt.charge?.disposition === "winner");
  const shown = ended.attempts.map((attempt) => attempt.start_s + (attempt === winner ? (attempt.content_s ?? attempt.end_s) : attempt.end_s));
  const end = 1.15 * Math.max(0.001, ...shown);
  const result = ended.error ? `failed: ${ended.error}` : (RESULTS[ended.result] ?? ended.result);
  const denied = ended.result === "denied" && ended.denied_why ? ` (${ended.denied_why})` : "";
  const line = element("div", { className: "what" },
    element("strong", {}, ended.ttft_s === null ? "no first token" : seconds(ended.ttft_s)),
    element("span", { className: ended.error ? "bad" : "" }, result + denied),
    element("code", {}, ended.request_id));
  return element("li", {}, line, ...ended.attempts.map((attempt) => attemptLine(attempt, attempt === winner, end)));
}
