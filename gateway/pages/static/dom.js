// Elements, tables and numbers. Text of the gateway is only ever set as text.

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

// Write rows in place, so that focus and selection survive. A row is a list of texts; the first one is its heading. A cell
// {button, ...data} is a button that a listener of the table finds by its data.
export function fillTable(body, rows, numeric = []) {
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((row, at) => {
    const line = body.rows[at] ?? body.insertRow();
    row.forEach((cell, column) => {
      let box = line.cells[column];
      if (!box) {
        box = element(column ? "td" : "th", { className: numeric.includes(column) ? "n" : "" });
        if (!column) box.scope = "row";
        line.append(box);
      }
      if (cell !== null && typeof cell === "object") fillButton(box, cell);
      else setText(box, cell);
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
