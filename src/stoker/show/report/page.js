"use strict";
(function () {
  const units = [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]];

  function text(form, value) {
    if (form === "share") return (100 * value).toFixed(1) + "%";
    if (form === "bytes") {
      const unit = units.find((pair) => value >= pair[1]) || ["B", 1];
      return (value / unit[1]).toFixed(unit[1] > 1 ? 1 : 0) + " " + unit[0];
    }
    return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(3));
  }

  function scale(words) {
    const [low, high, begin, end] = words.split(" ").map(Number);
    return (place) => low + ((place - begin) / (end - begin)) * (high - low);
  }

  function places(line) {
    return Array.from(line.getAttribute("d").matchAll(/[ML](\S+) ([\d.]+)/g), (m) => [+m[1], +m[2]]);
  }

  function nearest(points, x) {
    return points.reduce((best, p) => (Math.abs(p[0] - x) < Math.abs(best[0] - x) ? p : best), points[0]);
  }

  function read(svg, x, output) {
    const lines = Array.from(svg.querySelectorAll("path[data-name]"), (line) => [line, places(line)]);
    const filled = lines.filter((pair) => pair[1].length);
    if (!filled.length) return;
    const all = filled.flatMap((pair) => pair[1]);
    const at = nearest(all, x)[0];
    const across = scale(svg.dataset.x), up = scale(svg.dataset.y);
    const parts = filled.map(([line, points]) =>
      line.dataset.name + " " + text(svg.dataset.form, up(nearest(points, at)[1])));
    const place = "log" in svg.dataset ? Math.pow(10, across(at)) : across(at);
    output.textContent = svg.dataset.label + " " + text("number", place) + ": " + parts.join(", ");
    const [, , floor, ceiling] = svg.dataset.y.split(" ");
    svg.querySelector(".cursor").setAttribute("d", "M" + at + " " + floor + "V" + ceiling);
    svg.dataset.at = at;
  }

  function step(svg, direction, output) {
    const xs = Array.from(svg.querySelectorAll("path[data-name]")).flatMap(places).map((p) => p[0]);
    const sorted = Array.from(new Set(xs)).sort((a, b) => a - b);
    if (!sorted.length) return;
    const now = sorted.indexOf(Number(svg.dataset.at));
    const next = now < 0 ? (direction > 0 ? 0 : sorted.length - 1) : now + direction;
    read(svg, sorted[Math.min(Math.max(next, 0), sorted.length - 1)], output);
  }

  function inside(svg, event) {
    const point = new DOMPoint(event.clientX, event.clientY);
    return point.matrixTransform(svg.getScreenCTM().inverse());
  }

  for (const box of document.querySelectorAll(".plots")) {
    const output = box.parentElement.querySelector(".readout");
    const heat = box.querySelector(".heat");
    if (heat) {
      readCells(heat, output);
      continue;
    }
    box.addEventListener("pointermove", (event) => {
      const svg = event.target.closest("svg");
      if (svg) read(svg, inside(svg, event).x, output);
    });
    box.addEventListener("keydown", (event) => {
      const direction = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const svg = Array.from(box.querySelectorAll("svg")).find((one) => one.getClientRects().length);
      if (direction && svg) {
        step(svg, direction, output);
        event.preventDefault();
      }
    });
  }

  function readCells(svg, output) {
    const names = svg.dataset.names.split("|");
    const counts = new Map();
    for (const cell of svg.dataset.counts.split(";")) {
      const [row, column, count] = cell.split(",");
      counts.set(row + "," + column, count);
    }
    const [left, top, side, size] = svg.dataset.box.split(" ").map(Number);
    svg.addEventListener("pointermove", (event) => {
      const point = inside(svg, event);
      const column = Math.floor((point.x - left) / side), row = Math.floor((point.y - top) / side);
      if (row < 0 || column < 0 || row >= size || column >= size) return;
      const count = counts.get(row + "," + column) || "0";
      output.textContent = names[row] + (row === column ? " is right: " : " taken for " + names[column] + ": ") + count;
    });
  }

  function key(row, column) {
    const words = row.cells[column].dataset.key || row.cells[column].textContent;
    const number = parseFloat(words.replace(/,/g, ""));
    return /^[-\d.]/.test(words) && !Number.isNaN(number) ? number : words;
  }

  function sortBy(table, column, head) {
    const rising = head.getAttribute("aria-sort") !== "ascending";
    const body = table.tBodies[0];
    const rows = Array.from(body.rows, (row) => [key(row, column), row]);
    rows.sort(([a], [b]) => {
      const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
      return rising ? order : -order;
    });
    body.append(...rows.map((pair) => pair[1]));
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", rising ? "ascending" : "descending");
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
      if (head.tagName !== "TH") return;
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => sortBy(table, column, head));
    });
  }

  for (const field of document.querySelectorAll(".filter")) {
    field.hidden = false;
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase();
      for (const row of field.parentElement.querySelectorAll("tbody tr"))
        row.hidden = !row.cells[0].textContent.toLowerCase().includes(words);
    });
  }

  const theme = document.getElementById("theme");
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const root = document.documentElement;
    const isDark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
  });
})();
