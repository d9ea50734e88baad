// Pictures over time, and bars: small SVG, drawn here. What comes from outside is text, never markup.
"use strict";

// The page has an empty <svg>: its namespace is that of all others.
const drawn = (name, attributes, text) => {
  const made = document.createElementNS(document.getElementById("space").namespaceURI, name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
};

// Rows of a list.
const BARS = 6;
const HIGH = 130, LEFT = 46, RIGHT = 6, BOTTOM = 20, TOP = 8;

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

const milliseconds = (value) => {
  if (value === null || value === undefined) return "–";
  return value < 1000 ? short(value) + " ms" : short(value / 1000) + " s";
};
const bytes = (value) => short(value) + (value < 1000 ? " B" : "B");

const clock = (seconds) => new Date(seconds * 1000).toTimeString().slice(0, 5);

// Whole minutes and hours of the reader's clock, at most `most` of them.
function ticks(from, to, most) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360];
  const step = 60 * (steps.find((minutes) => (to - from) / 60 / minutes <= most) || 720);
  const zone = new Date(from * 1000).getTimezoneOffset() * 60;
  const times = [];
  for (let time = Math.ceil((from - zone) / step) * step + zone; time <= to; time += step) times.push(time);
  return times;
}

// Series of one plot: {name, kind: "area" | "line" | "bar" | "mark", style, values}. Areas and bars stand
// upon each other; a mark is a dot at the bottom where its value is more than nothing. A time is the start of
// its minute; of the last one, if it is not over, bars are pale, and lines and areas end before it.
function plot(figure, times, series, format, now, describe) {
  const wide = Math.max(240, figure.clientWidth - 2 * parseFloat(getComputedStyle(figure).paddingLeft));
  const from = times[0], last = times.length - 1, to = times[last] + 60;
  const whole = last > 0 && now < to ? last : times.length;
  const x = (time) => LEFT + (wide - LEFT - RIGHT) * (time - from) / (to - from);
  const stacked = series.filter((one) => one.kind === "area" || one.kind === "bar");
  const sums = times.map((_, at) => stacked.reduce((sum, one) => sum + (one.values[at] || 0), 0));
  const lines = series.filter((one) => one.kind === "line");
  const most = Math.max(...sums,
    ...lines.flatMap((one) => one.values.slice(0, whole).map((value) => value || 0)), 0);
  const top = ceiling(most);
  const y = (value) => TOP + (HIGH - TOP - BOTTOM) * (1 - value / top);
  const point = (value, at) => `${x(times[at] + 30).toFixed(1)},${y(value).toFixed(1)}`;
  const picture = drawn("svg", { viewBox: `0 0 ${wide} ${HIGH}`, role: "img", "aria-label": describe(most) });
  for (const share of [0, 0.5, 1]) {
    const height = y(top * share);
    picture.append(drawn("line", { class: "grid", x1: LEFT, x2: wide - RIGHT, y1: height, y2: height }));
    // Half a ban is none.
    if (format === short && top * share % 1) continue;
    picture.append(drawn("text", { x: LEFT - 6, y: height + 4, "text-anchor": "end" }, format(top * share)));
  }
  for (const time of ticks(from, to, Math.floor(wide / 70))) {
    const place = x(time);
    picture.append(drawn("line", { class: "grid", x1: place, x2: place, y1: y(0), y2: y(0) + 4 }));
    const anchor = place > wide - 22 ? "end" : "middle";
    picture.append(drawn("text", { x: anchor === "end" ? wide : place, y: HIGH - 4, "text-anchor": anchor }, clock(time)));
  }
  const ground = times.map(() => 0);
  const broad = Math.max(1, 0.85 * (x(from + 60) - x(from)));
  for (const one of stacked) {
    const upper = times.map((_, at) => ground[at] + (one.values[at] || 0));
    if (one.kind === "area") {
      const path = [...upper.slice(0, whole).map(point), ...ground.slice(0, whole).map(point).reverse()].join(" ");
      picture.append(drawn("polygon", { class: "fill " + one.style, points: path }));
    } else {
      times.forEach((time, at) => {
        if (!one.values[at]) return;
        const height = y(ground[at]) - y(upper[at]);
        picture.append(drawn("rect", { class: `fill ${one.style}${at < whole ? "" : " open"}`, x: x(time),
          y: y(upper[at]), width: broad, height: Math.max(1, height) }));
      });
    }
    upper.forEach((value, at) => { ground[at] = value; });
  }
  for (const one of lines) {
    let path = "";
    one.values.slice(0, whole).forEach((value, at) => {
      if (value === null) return;
      const follows = at > 0 && one.values[at - 1] !== null;
      path += (follows ? "L" : "M") + point(value, at);
      if (!follows && (at + 1 >= times.length || one.values[at + 1] === null)) path += "h2";
    });
    picture.append(drawn("path", { class: "stroke " + one.style, d: path }));
  }
  for (const one of series.filter((one) => one.kind === "mark")) {
    times.forEach((time, at) => {
      if (!one.values[at]) return;
      picture.append(drawn("circle", { class: "fill " + one.style, cx: x(time + 30), cy: y(0), r: 3 }));
    });
  }
  const hand = drawn("line", { class: "hand", y1: TOP, y2: HIGH - BOTTOM, x1: -9, x2: -9 });
  picture.append(hand);
  const legend = figure.querySelector("figcaption span");
  const key = (text, style) => {
    const made = document.createElement("i");
    made.textContent = text;
    if (style) made.className = "key " + style;
    return made;
  };
  const tell = (at) => legend.replaceChildren(key(clock(times[at])), ...series.map((one) => key(
    `${one.name} ${format(one.values[at])}`, one.style)));
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const share = ((event.clientX - box.left) / box.width * wide - LEFT) / (wide - LEFT - RIGHT);
    const distance = (at) => Math.abs(times[at] + 30 - from - (to - from) * share);
    const nearest = times.reduce((best, _, at) => (distance(at) < distance(best) ? at : best), 0);
    for (const end of ["x1", "x2"]) hand.setAttribute(end, x(times[nearest] + 30));
    tell(nearest);
  });
  picture.addEventListener("pointerleave", () => {
    for (const end of ["x1", "x2"]) hand.setAttribute(end, -9);
    tell(whole - 1);
  });
  tell(whole - 1);
  const old = figure.querySelector("svg");
  if (old) old.replaceWith(picture);
  else figure.append(picture);
}

// Rows of [name, passed, refused], the longest first: its bar is as wide as there is room.
function bars(place, rows) {
  const all = ([, passed, refused]) => passed + refused;
  rows = rows.filter(all).sort((one, other) => all(other) - all(one)).slice(0, BARS);
  const most = Math.max(1, ...rows.map(all));
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
