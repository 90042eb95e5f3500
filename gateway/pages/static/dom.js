// Elements, shapes, tables and numbers. Text of the gateway is only ever set as text.

export const byId = (id) => document.getElementById(id);

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  Object.assign(made, properties);
  made.append(...children);
  return made;
}

export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

const SVG = "http://www.w3.org/2000/svg";

// Return a shape of a picture, with a text, and a title that a pointer shows.
export function shape(tag, attributes, text = "", title = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  if (title) {
    const tip = document.createElementNS(SVG, "title");
    tip.textContent = title;
    made.append(tip);
  }
  return made;
}

// Return round numbers between two numbers, for an axis of ratios: powers of ten, with 2 and 5 if there are few.
export function ticks(low, high, most) {
  for (const digits of [[1, 2, 5], [1, 3], [1]]) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += 1) {
      found.push(...digits.map((digit) => digit * 10 ** power).filter((each) => each >= low && each <= high));
    }
    if (found.length <= most) return found;
  }
  return [];
}

// Write rows in place, so that focus and selection survive. A row is a list of texts; the first one is its heading. A cell
// {button, ...data} is a button that a listener of the table finds by its data, {text, kind} a text with a class. Each
// cell has the heading of its column, for narrow screens.
export function fillTable(body, rows, numeric = []) {
  const heads = [...(body.parentElement.tHead?.rows[0].cells ?? [])].map((head) => head.textContent);
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((row, at) => {
    const line = body.rows[at] ?? body.insertRow();
    row.forEach((cell, column) => {
      let box = line.cells[column];
      if (!box) {
        box = element(column ? "td" : "th", { className: numeric.includes(column) ? "n" : "" });
        if (!column) box.scope = "row";
        else box.dataset.head = heads[column] ?? "";
        line.append(box);
      }
      if (cell?.button) fillButton(box, cell);
      else setText(box, cell?.text ?? cell);
      if (column) box.dataset.empty = String(cell === "–");
      if (cell?.kind) box.className = cell.kind;
    });
  });
}

function fillButton(box, { button, ...data }) {
  let made = box.firstElementChild;
  if (!made) box.append((made = element("button", { type: "button" })));
  setText(made, button);
  Object.assign(made.dataset, data);
}

// Write figures of a <dl>, in place: pairs of name and value.
export function fillFigures(list, pairs) {
  while (list.children.length > pairs.length) list.lastElementChild.remove();
  pairs.forEach(([name, value], at) => {
    const group = list.children[at] ?? list.appendChild(element("div", {}, element("dt"), element("dd")));
    setText(group.children[0], name);
    setText(group.children[1], value);
  });
}

export const seconds = (s) => (s === null || s === undefined ? "–" : milliseconds(s * 1000));

export function milliseconds(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  return `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
}

export function count(n) {
  return n === null || n === undefined ? "–" : n.toLocaleString("en", { maximumFractionDigits: 2 });
}

export function quantile(sorted, q) {
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))] : null;
}
