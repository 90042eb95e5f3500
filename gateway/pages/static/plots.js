// Pictures: the distribution of first tokens, and the attempts of a race.

import { element, seconds } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 800;
const HEIGHT = 170; // of the bars; labels are below
const BINS = 40;

function shape(tag, attributes, text = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

const TICKS_S = [-4, -3, -2, -1, 0, 1, 2].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power));

// Draw a histogram over logarithmic time. `samples` are {ttft_s, backup}: backup is true if a backup won. `marks` are
// [name, seconds].
export function drawDistribution(plot, samples, marks) {
  plot.replaceChildren();
  if (!samples.length) return;
  const times = samples.map((sample) => Math.max(sample.ttft_s, 1e-4));
  const low = Math.log(Math.min(...times) * 0.8);
  const high = Math.max(Math.log(Math.max(...times) * 1.2), low + 1);
  const x = (s) => ((Math.log(Math.max(s, 1e-4)) - low) / (high - low)) * WIDTH;
  const bins = Array.from({ length: BINS }, () => [0, 0]);
  samples.forEach((sample, at) => {
    bins[Math.min(BINS - 1, Math.floor((x(times[at]) / WIDTH) * BINS))][sample.backup ? 1 : 0] += 1;
  });
  // The square root of the counts, so that the few in the tail are visible.
  const top = Math.sqrt(Math.max(...bins.map(([first, second]) => first + second)));
  const height = (n) => (Math.sqrt(n) / top) * (HEIGHT - 20);
  const wide = WIDTH / BINS;
  bins.forEach(([first, second], at) => {
    const all = height(first + second);
    const upper = first + second ? (all * second) / (first + second) : 0;
    const bar = { x: at * wide + 1, width: wide - 2 };
    if (first) plot.append(shape("rect", { ...bar, class: "first", y: HEIGHT - all + upper, height: all - upper }));
    if (second) plot.append(shape("rect", { ...bar, class: "second", y: HEIGHT - all, height: upper }));
  });
  plot.append(shape("line", { x1: 0, x2: WIDTH, y1: HEIGHT, y2: HEIGHT }));
  for (const s of TICKS_S) {
    const at = x(s);
    if (at > 20 && at < WIDTH - 20) {
      plot.append(shape("text", { x: at, y: HEIGHT + 18, "text-anchor": "middle" }, seconds(s)));
    }
  }
  marks.forEach(([name, s], at) => {
    if (s === null) return;
    plot.append(shape("line", { class: "mark", x1: x(s), x2: x(s), y1: 14, y2: HEIGHT }));
    plot.append(shape("text", { x: Math.min(x(s) + 4, WIDTH - 30), y: 12 + at * 14 }, name));
  });
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
