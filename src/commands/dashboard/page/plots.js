// Pictures over time, and bars: small SVG, drawn here. What comes from outside is text, never markup.
"use strict";

// The page has an empty <svg>: its namespace is that of all others.
const drawn = (name, attributes, text) => {
  const made = document.createElementNS(document.getElementById("space").namespaceURI, name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
};

const WIDE = 480, HIGH = 120, LEFT = 44, BOTTOM = 18, TOP = 6;

// 1, 2 or 5 times a power of ten, at least `value`.
function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * power).find((bound) => bound >= value * 0.999);
}

const short = (value) => {
  if (value === null || value === undefined) return "–";
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (value >= size) return +(value / size).toFixed(1) + " " + unit;
  }
  return String(+Number(value).toFixed(value < 10 ? 2 : 0));
};

const clock = (seconds) => new Date(seconds * 1000).toTimeString().slice(0, 5);

// Series of one plot: {name, kind: "area" | "line" | "bar" | "mark", style, values}. Areas and bars stand
// upon each other; a mark is a short line at the bottom where its value is more than nothing.
function plot(figure, times, series, unit, describe) {
  const from = times[0], to = Math.max(times[times.length - 1], from + 60);
  const x = (time) => LEFT + (WIDE - LEFT) * (time - from) / (to - from);
  const stacked = series.filter((one) => one.kind === "area" || one.kind === "bar");
  const sums = times.map((_, at) => stacked.reduce((sum, one) => sum + (one.values[at] || 0), 0));
  const lines = series.filter((one) => one.kind === "line");
  const most = Math.max(...sums, ...lines.flatMap((one) => one.values.map((value) => value || 0)), 0);
  const top = ceiling(most);
  const y = (value) => TOP + (HIGH - TOP - BOTTOM) * (1 - value / top);
  const picture = drawn("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": describe(most) });
  for (const share of [0, 0.5, 1]) {
    const height = y(top * share);
    picture.append(drawn("line", { class: "grid", x1: LEFT, x2: WIDE, y1: height, y2: height }));
    picture.append(drawn("text", { x: LEFT - 4, y: height + 4, "text-anchor": "end" }, short(top * share)));
  }
  for (const [share, anchor] of [[0, "start"], [0.5, "middle"], [1, "end"]]) {
    const time = from + (to - from) * share;
    picture.append(drawn("text", { x: x(time), y: HIGH - 4, "text-anchor": anchor }, clock(time)));
  }
  const ground = times.map(() => 0);
  const broad = Math.max(1, (WIDE - LEFT) / Math.max(1, times.length) * 0.8);
  for (const one of stacked) {
    const upper = times.map((_, at) => ground[at] + (one.values[at] || 0));
    if (one.kind === "area") {
      const point = (value, at) => `${x(times[at]).toFixed(1)},${y(value).toFixed(1)}`;
      const path = [...upper.map(point), ...ground.map(point).reverse()].join(" ");
      picture.append(drawn("polygon", { class: "fill " + one.style, points: path }));
    } else {
      times.forEach((time, at) => {
        if (!one.values[at]) return;
        const height = y(ground[at]) - y(upper[at]);
        picture.append(drawn("rect", { class: "fill " + one.style, x: Math.min(x(time), WIDE - broad),
          y: y(upper[at]), width: broad, height: Math.max(1, height) }));
      });
    }
    upper.forEach((value, at) => { ground[at] = value; });
  }
  for (const one of lines) {
    let path = "";
    one.values.forEach((value, at) => {
      if (value === null) return;
      const follows = at > 0 && one.values[at - 1] !== null;
      path += `${follows ? "L" : "M"}${x(times[at]).toFixed(1)} ${y(value).toFixed(1)}`;
      if (!follows && (at + 1 >= times.length || one.values[at + 1] === null)) path += "h1";
    });
    picture.append(drawn("path", { class: "stroke " + one.style, d: path }));
  }
  for (const one of series.filter((one) => one.kind === "mark")) {
    times.forEach((time, at) => {
      if (!one.values[at]) return;
      picture.append(drawn("circle", { class: "fill " + one.style, cx: x(time), cy: y(0), r: 3 }));
    });
  }
  const hand = drawn("line", { class: "hand", y1: TOP, y2: HIGH - BOTTOM, x1: -9, x2: -9 });
  picture.append(hand);
  const legend = figure.querySelector("figcaption span");
  const tell = (at) => {
    const words = series.map((one) => `${one.name} ${short(one.values[at])}${one.kind === "mark" ? "" : unit}`);
    legend.textContent = (at < times.length - 1 ? clock(times[at]) + "  " : "") + words.join("   ");
  };
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const time = from + (to - from) * ((event.clientX - box.left) / box.width * WIDE - LEFT) / (WIDE - LEFT);
    const distance = (at) => Math.abs(times[at] - time);
    const nearest = times.reduce((best, _, at) => (distance(at) < distance(best) ? at : best), 0);
    for (const end of ["x1", "x2"]) hand.setAttribute(end, x(times[nearest]));
    tell(nearest);
  });
  picture.addEventListener("pointerleave", () => {
    for (const end of ["x1", "x2"]) hand.setAttribute(end, -9);
    tell(times.length - 1);
  });
  tell(times.length - 1);
  const old = figure.querySelector("svg");
  if (old) old.replaceWith(picture);
  else figure.append(picture);
}

// Rows of [name, passed, refused]: the longest bar is as wide as there is room.
function bars(place, rows) {
  const most = Math.max(1, ...rows.map(([, passed, refused]) => passed + refused));
  place.replaceChildren(...rows.map(([name, passed, refused]) => {
    const row = document.createElement("li");
    const words = document.createElement("span");
    words.textContent = name;
    words.title = name;
    const count = document.createElement("b");
    count.textContent = short(passed + refused) + (refused ? ` (${short(refused)} refused)` : "");
    const picture = drawn("svg", { viewBox: "0 0 100 4", preserveAspectRatio: "none", "aria-hidden": "true" });
    const wide = 100 * passed / most;
    picture.append(drawn("rect", { class: "fill good", x: 0, y: 0, width: wide, height: 4 }));
    picture.append(drawn("rect", { class: "fill bad", x: wide, y: 0, width: 100 * refused / most, height: 4 }));
    row.append(words, count, picture);
    return row;
  }));
}
