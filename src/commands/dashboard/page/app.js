// The page asks the command that served it, and nobody else. What comes from outside is text, never markup.
"use strict";

const $ = (id) => document.getElementById(id);
const EVERY_MS = 2000;
let list = "clients";
let before = null;
let held = {};
let observes = false;

async function ask(path, options = {}) {
  const headers = { "X-Weir-Dashboard": "1", ...(options.headers || {}) };
  const answer = await fetch("api/" + path, { ...options, headers, cache: "no-store" });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.detail || body.title || "the service answered " + answer.status);
  return body;
}

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = String(text);
  if (className) made.className = className;
  return made;
}

const dash = (value) => (value === null || value === undefined || value === "" ? "–" : value);
const share = (part, whole) => (whole ? (100 * part / whole).toFixed(1) + " %" : "–");

function span(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const at = units.findIndex(([, length]) => seconds >= length);
  if (at < 0) return "0 s";
  let rest = Math.floor(seconds);
  const parts = units.slice(at, at + 2).map(([unit, length]) => {
    const count = Math.floor(rest / length);
    rest %= length;
    return count ? count + " " + unit : "";
  });
  return parts.filter(Boolean).join(" ");
}

// How far the clock of the service is ahead of the browser's.
let ahead = 0;
const now = () => Date.now() + ahead;
const until = (time) => (!time ? "–" : time === "permanent" ? time : span(Math.max(0, (Date.parse(time) - now()) / 1000)));
const since = (time) => (time ? span(Math.max(0, (now() - Date.parse(time)) / 1000)) + " ago" : "–");

function showStatus(status) {
  observes = status.mode === "observe";
  $("observe").hidden = !observes;
  $("mode").textContent = status.mode;
  $("mode").className = "badge " + (observes ? "warn" : "good");
  $("head").textContent = `${status.version}, up ${span(status.uptime_seconds)}, ${status.address} to ${status.upstream}`;
  const at = performance.now();
  const rate = before ? ((status.total.requests - before.requests) * 1000 / (at - before.at)).toFixed(1) : "–";
  before = { requests: status.total.requests, at };
  const recent = status.recent;
  const app = recent.upstream;
  const answers = Object.values(app.responses).reduce((sum, count) => sum + count, 0);
  const tiles = [
    [rate, "requests/s now"],
    [(recent.requests / Math.max(1, recent.seconds)).toFixed(1), "requests/s, 5 min"],
    [share(recent.passed, recent.requests), "passed, 5 min"],
    [share(recent.refused, recent.requests), (observes ? "would refuse" : "refused") + ", 5 min"],
    [status.bans.active, `active bans (of ${status.bans.max})`],
    [status.clients.held, "clients known"],
    [status.connections.open, "connections"],
    [milliseconds(app.p99_seconds && app.p99_seconds * 1000), "application p99"],
    [share(app.responses["5xx"] || 0, answers), "its errors (5xx)"],
  ];
  $("tiles").replaceChildren(...tiles.map(([value, name]) => {
    const tile = element("li");
    tile.append(element("b", value), element("span", name));
    return tile;
  }));
  $("warnings").replaceChildren(...status.warnings.map((text) => element("li", "warning: " + text)));
}

const address = (client) => client.replace(/\/64$/, "");

// What has more than one column of text; the last of them is wide.
const group = (by, heading) => ({
  headings: [heading, "Clients", "Banned", "Day", "Passed", "Refused", "Seen", ...(by === "asn" ? ["Name"] : []), ""],
  numbers: [1, 2, 3, 4, 5],
  ask: (sort) => ask(`groups?by=${by}&limit=200&sort=${sort}`).then((answer) => answer.groups),
  cells: (one) => [dash(one.group), one.clients, one.banned, one.requests, one.passed, one.refused, since(one.last_seen),
    ...(by === "asn" ? [dash(one.name)] : [])],
  buttons: (one) => (by === "netblock" ? [
    ["Explain", () => explain(one.group.split("/")[0])],
    ...(one.banned ? [] : [["Ban", () => askBan(`Ban ${one.group}? Clients known of it: ${one.clients}.`,
      { netblock: one.group }, one.group)]]),
    ...(one.banned ? [["Lift", () => sure(`Lift the bans of exactly ${one.group}?`, () => lift(one.group))]] : []),
  ] : []),
});

const lists = {
  clients: {
    ask: (sort) => ask("clients?limit=200&sort=" + sort).then((answer) => answer.clients),
    headings: ["Client", "Day", "Passed", "Refused", "Seen", "Country", "AS", "Ban", ""],
    numbers: [1, 2, 3],
    cells: (one) => [one.client, one.requests.day.current, one.passed, one.refused, since(one.last_seen),
      dash(one.lookup && one.lookup.country), dash(one.lookup && one.lookup.asn), until(one.ban_expires)],
    buttons: (one) => [
      ["Explain", () => explain(address(one.client))],
      ...(one.ban_expires ? [] : [["Ban", () => askBan(`Ban the netblock of ${one.client}?`,
        { client: address(one.client) }, `the netblock of ${one.client}`)]]),
      ...(one.ban_expires ? [["Lift", () => sure(`Lift every ban that covers ${one.client}?`, () => lift(address(one.client)))]] : []),
    ],
  },
  netblocks: group("netblock", "Netblock"),
  ases: group("asn", "AS"),
  countries: group("country", "Country"),
  paths: {
    headings: ["Path", "Requests", "Refused", "Failed", "Last status"],
    numbers: [1, 2, 3, 4],
    wide: 0,
    ask: () => ask("paths").then((answer) => {
      lists.paths.about = `The last minute: ${answer.requests} logged requests, at most 100 a second` +
        (answer.left_out ? `; ${answer.left_out} more were not looked at.` : ".") +
        (answer.fault ? ` None are looked at now: ${answer.fault}.` : "");
      return answer.paths;
    }),
    cells: (one) => [one.path, one.requests, one.refused, one.failed, one.status],
    buttons: () => [],
  },
  bans: {
    wide: 5,
    ask: () => ask("bans?active=true&newest=500").then((answer) => {
      lists.bans.about = answer.bans.length < 500 ? "" : "The newest 500; weir bans lists all.";
      return answer.bans.reverse();
    }),
    headings: ["Netblock", "Ends in", "Cause", "Client", "Hits", "Reason", ""],
    numbers: [4],
    cells: (one) => [one.netblock, until(one.ban_expires) + (one.observed ? " (observe)" : ""), one.cause,
      dash(one.client), dash(one.notes && one.notes.netblock_requests), one.reason],
    buttons: (one) => [
      ["Explain", () => explain(one.netblock.split("/")[0])],
      ["Lift", () => sure(`Lift the bans of exactly ${one.netblock}?`, () => lift(one.netblock))],
    ],
  },
  alerts: {
    wide: 3,
    ask: () => ask("alerts").then((answer) => answer.alerts.reverse()),
    headings: ["Time", "Kind", "Of", "What"],
    numbers: [],
    cells: (one) => [one.time, one.kind, dash(one.netblock || one.of || one.file || one.feed || one.name || one.key ||
      one.per || one.scope || one.hour || one.what),
    dash(one.reason || one.error || one.expires || one.threshold || one.held_back || one.detail || one.rule)],
    buttons: () => [],
  },
  shared: {
    wide: 0,
    ask: () => ask("status").then((answer) => answer.shared_limits),
    headings: ["Limit", "Fullest", "Keys", "Refused"],
    numbers: [1, 2, 3],
    cells: (one) => [one.rule, (one.used * 100).toFixed(1) + " %", one.keys, one.hits],
    buttons: () => [],
  },
  crawlers: {
    wide: 0,
    ask: () => ask("status").then((answer) => answer.crawlers),
    headings: ["Crawler", "Purpose", "State", "Passed", "Refused"],
    numbers: [3, 4],
    cells: (one) => [one.name, one.purpose, one.state, one.passed, one.refused],
    buttons: () => [],
  },
  // The instances that act as one with this one; without a fleet it is not offered.
  fleet: {
    wide: 7,
    ask: () => ask("fleet").then((fleet) => {
      offerFleet(fleet);
      lists.fleet.about = fleet ? aboutFleet(fleet) : "This instance is of no fleet: WAF_FLEET is off.";
      return fleet ? fleet.instances : [];
    }),
    headings: ["Instance", "State", "Seen", "Waiting", "Clock", "Version", "Bans", "Settings that differ"],
    numbers: [2, 3, 4, 6],
    cells: (one) => [one.name + (one.self ? " (this one)" : ""), one.state, milliseconds(one.lag_ms), dash(one.waiting),
      milliseconds(one.clock_ms), dash(one.version), dash(one.bans),
      one.settings.map((it) => `${it.name} ${it.there} (here ${it.here})`).join(", ") || "–"],
    buttons: () => [],
  },
};

function aboutFleet(fleet) {
  const place = `fleet ${fleet.fleet} at ${fleet.engine}`;
  if (fleet.state === "alone") {
    return `${place}: alone for ${span(fleet.alone_seconds)}: ${fleet.why}; ${fleet.waiting} events wait`;
  }
  const step = fleet.in_step ? "in step: all hold the same" : "not in step";
  return `${place}, round trip ${fleet.round_trip_ms} ms; ${step}`;
}

function offerFleet(fleet) {
  $("tab-fleet").hidden = !fleet;
  $("last-key").hidden = !fleet;
}

function showList() {
  const form = lists[list];
  const wanted = $("search").value.toLowerCase();
  const headings = element("tr");
  headings.append(...form.headings.map((name, at) => element("th", name, form.numbers.includes(at) ? "number" : "")));
  $("headings").replaceChildren(headings);
  const focused = document.activeElement && document.activeElement.dataset.key;
  const rows = [];
  $("about").textContent = form.about || "";
  for (const one of held[list] || []) {
    const cells = form.cells(one);
    if (!cells.some((cell) => String(cell).toLowerCase().includes(wanted))) continue;
    const row = element("tr");
    cells.forEach((cell, at) => {
      const made = element("td", cell, form.numbers.includes(at) ? "number" : at === form.wide ? "wide" : "");
      // On a phone a row is a card, and each cell tells its heading.
      made.dataset.label = form.headings[at];
      row.append(made);
    });
    const buttons = form.buttons(one);
    if (buttons.length) {
      const last = element("td");
      for (const [name, act] of buttons) {
        const button = element("button", name);
        button.dataset.key = `${name} ${cells[0]}`;
        button.setAttribute("aria-label", `${name}: ${cells[0]}`);
        button.addEventListener("click", act);
        last.append(button);
      }
      row.append(last);
    }
    rows.push(row);
  }
  $("rows").replaceChildren(...rows);
  $("none").hidden = rows.length > 0;
  // The list is made anew: who was at a button stays there.
  if (focused) {
    const same = [...document.querySelectorAll("td button")].find((button) => button.dataset.key === focused);
    if (same) same.focus();
  }
}

function open(title, text, act) {
  $("question").textContent = title;
  $("text").textContent = text;
  $("yes").hidden = !act;
  $("terms").hidden = true;
  $("no").textContent = act ? "No" : "Close";
  $("yes").onclick = async () => {
    $("dialog").close();
    await act();
  };
  $("dialog").showModal();
}

const sure = (question, act) => open(question, "", act);

async function did(what, work) {
  try {
    await work();
    $("note").textContent = what;
  } catch (error) {
    $("note").textContent = error.message;
  }
  await look();
}

// Asks for how long and why first.
function askBan(question, whom, words) {
  open(question, "", () => {
    const duration = $("for").value;
    const reason = $("why").value.trim() || "weir dashboard";
    return did(`${words} is banned (${duration})`, () => ask("bans", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ ...whom, duration, reason }),
    }));
  });
  $("terms").hidden = false;
  $("for").focus();
}
const lift = (subject) => did(`no ban of ${subject} is left`,
  () => ask("bans/" + encodeURIComponent(subject), { method: "DELETE" }));

async function explain(subject) {
  try {
    const answer = await ask("explain?address=" + encodeURIComponent(subject));
    open(`What the checks would do with ${subject}`, answer.text);
  } catch (error) {
    $("note").textContent = error.message;
  }
}

let looking = false;
let again = false;
async function look() {
  // Another list was chosen meanwhile: it is asked for next.
  again = looking;
  if (looking) return;
  looking = true;
  const name = list;
  try {
    const [status, rows] = await Promise.all([ask("status"), lists[name].ask($("sort").value)]);
    held[name] = rows;
    showStatus(status);
    showList();
    $("problem").hidden = true;
  } catch (error) {
    $("problem").textContent = error.message;
    $("problem").hidden = false;
  } finally {
    looking = false;
  }
  if (again) await look();
}

// Pictures, less often: a minute has one value.
const PICTURES_MS = 10000;
let minutes = 60;
let resized;

// The reasons for a refusal, in the order in which they stand upon each other, in words.
const REASONS = [
  ["banned", "banned", "bad"], ["rate_limited", "over a limit", "warn"], ["trapped", "trap", "third"],
  ["denied_net", "deny list", "fourth"], ["denied_country", "country", "fifth"],
  ["denied_asn", "AS", "fifth"], ["denied_rule", "denial", "fourth"],
  ["overloaded", "too busy", "quiet"], ["body_too_large", "body too large", "mark"],
];

function showHistory(history) {
  // Where nothing was counted there is no value: a gap of the service is none of the traffic.
  const { times, actions } = history;
  if (!times.length) return;
  const none = times.map(() => 0);
  const refused = observes ? "would refuse" : "refused";
  ahead = history.now * 1000 - Date.now();
  const stack = times.length > 90 ? "area" : "bar";
  const draw = (place, series, format, what) => plot($(place), times, series, format, history.now,
    (most) => `${what} from ${clock(times[0])}, at most ${format(most)}`);
  draw("plot-requests", [
    { name: "passed", kind: stack, style: "good", values: history.passed },
    { name: refused, kind: stack, style: "bad", values: history.refused },
  ], short, "Requests a minute");
  $("refusals-title").textContent = observes ? "Would refuse, by reason" : "Refused, by reason";
  const reasons = REASONS.filter(([name]) => actions[name]).map(([name, words, style]) => (
    { name: words, kind: "bar", style, values: actions[name] }));
  draw("plot-refusals", reasons.length ? reasons
    : [{ name: refused, kind: "bar", style: "bad", values: none }], short, "Refusals a minute");
  const inMilliseconds = (values) => values.map((value) => (value === null ? null : value * 1000));
  draw("plot-times", [
    { name: "p50", kind: "line", style: "mark", values: inMilliseconds(history.p50_seconds) },
    { name: "p99", kind: "line", style: "warn", values: inMilliseconds(history.p99_seconds) },
  ], milliseconds, "Time of the application");
  draw("plot-errors", [
    { name: "5xx", kind: "bar", style: "bad", values: history.responses["5xx"] || none },
  ], short, "Errors of the application a minute");
  draw("plot-bans", [
    { name: "active", kind: "line", style: "mark", values: history.bans_active },
    { name: "made", kind: "mark", style: "bad", values: history.bans_made },
  ], short, "Active bans");
  draw("plot-bytes", [
    { name: "in", kind: "line", style: "third", values: history.request_bytes },
    { name: "out", kind: "line", style: "mark", values: history.response_bytes },
  ], bytes, "Bytes of bodies a minute");
}

async function showPictures() {
  // Who has most is among those with the most that was counted and the most that was refused.
  const most = async (path, member, key) => {
    const asked = ["requests", "refused"].map((sort) => ask(`${path}limit=${BARS}&sort=${sort}`));
    const rows = (await Promise.all(asked)).flatMap((answer) => answer[member]);
    return [...new Map(rows.map((one) => [one[key], one])).values()];
  };
  const group = (by) => most(`groups?by=${by}&`, "groups", "group");
  try {
    const [history, countries, ases, netblocks, clients, paths, fleet] = await Promise.all([
      ask("history?minutes=" + minutes), group("country"), group("asn"), group("netblock"),
      most("clients?", "clients", "client"), ask("paths"), ask("fleet"),
    ]);
    offerFleet(fleet);
    showHistory(history);
    const rows = (groups, name) => groups.map((one) => [name(one), one.passed, one.refused]);
    bars($("bars-country"), rows(countries, (one) => one.group || "unknown"));
    bars($("bars-asn"), rows(ases, (one) => [one.group, one.name].filter(Boolean).join(" ") || "unknown"));
    bars($("bars-netblock"), rows(netblocks, (one) => one.group));
    bars($("bars-clients"), rows(clients, (one) => one.client));
    bars($("bars-paths"), paths.paths.map((one) => [one.path, one.requests - one.refused, one.refused]));
  } catch (error) {
    // look() tells what is wrong with the service.
    $("pictures").dataset.problem = error.message;
  }
}

for (const button of document.querySelectorAll(".ranges button")) {
  button.addEventListener("click", () => {
    minutes = Number(button.dataset.minutes);
    for (const other of document.querySelectorAll(".ranges button")) {
      other.setAttribute("aria-pressed", String(other === button));
    }
    showPictures();
  });
}

function choose(name) {
  list = name;
  for (const tab of Object.keys(lists)) $("tab-" + tab).setAttribute("aria-selected", String(tab === name));
  $("list").setAttribute("aria-labelledby", "tab-" + name);
  showList();
  look();
}

for (const name of Object.keys(lists)) $("tab-" + name).addEventListener("click", () => choose(name));
$("sort").addEventListener("change", look);
$("search").addEventListener("input", showList);
$("no").addEventListener("click", () => $("dialog").close());
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("dialog").open) return;
  const writes = event.target.matches("input, select");
  if (event.key === "Escape" && event.target === $("search")) {
    $("search").value = "";
    showList();
    $("search").blur();
  } else if (!writes && event.key === "/") {
    event.preventDefault();
    $("search").focus();
  } else if (!writes && /^[0-9]$/.test(event.key)) {
    const name = Object.keys(lists)[(Number(event.key) + 9) % 10];
    if (!$("tab-" + name).hidden) choose(name);
  }
});
look().then(showPictures);
setInterval(look, EVERY_MS);
setInterval(showPictures, PICTURES_MS);
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(showPictures, 200);
});
