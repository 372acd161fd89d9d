"use strict";
// The timeline: tracks of cores on a canvas. Times are ns. Spans lie in columns, sorted by track and begin, so that what
// is visible is found by halving, and what falls into one pixel is drawn once. Many cores of one type are a group: a row
// that shows, for each pixel, how many of them do what, above the cores' own rows unless it is closed.
const data = JSON.parse(document.getElementById("data").textContent);
const { kinds, names, details, tracks, cores, columns, flows, path } = data;
const [TRACK, BEGIN, LENGTH, KIND, NAME, SUBOP, DETAIL] = [0, 1, 2, 3, 4, 5, 6];
const count = columns[TRACK].length;
const begins = Float64Array.from(columns[BEGIN]);
const lengths = Float64Array.from(columns[LENGTH]);
const WHOLE = Math.max(1, data.duration);
const ROW = tracks.length <= 8 ? 26 : 14, GROUP = 44, GAP = 6, RULER = 20, LABEL = 190, ARROWS_MAX = 2000, GROUPED_FROM = 17;
// What a core does, of all that its engines and its control unit do at a time: the first of these.
const FOREMOST = ["compute", "numpy", "movement", "fetch", "wait", "imbalance", "signal", "work", "between", "stall", "flag"];
// In one row for a whole core that lies on top, then copies, then what its control unit waits for.
const LEVELS = [FOREMOST.slice(FOREMOST.indexOf("work")), ["fetch", "wait", "imbalance", "signal"], ["movement"], ["compute", "numpy"]];
const levels = kinds.map(kind => LEVELS.findIndex(level => level.includes(kind)));
// The part of the time that a kind belongs to, as reports call it, and its colour.
const [told, painted] = [0, 1].map(at => kind => data.parts[kinds.indexOf(kind)][at]);
const canvas = document.getElementById("canvas"), ink = canvas.getContext("2d");
const tip = document.getElementById("tip"), status = document.getElementById("status");
const uses = new Int32Array(names.length); // spans by name
for (const name of columns[NAME]) uses[name]++;
const first = new Int32Array(tracks.length + 1);
for (let i = 0; i < count; i++) first[columns[TRACK][i] + 1]++;
for (let t = 0; t < tracks.length; t++) first[t + 1] += first[t];

let left = 0, wide = WHOLE, chosen = null, grip = null, moved = false, range = null, hits = null;
let rows = [], tall = 0, width = 0;
const folded = new Set(), closed = new Set();
const tracksOf = cores.map((_, core) => tracks.flatMap((track, number) => (track.core === core ? [number] : [])));
const types = cores.map(name => name.replace(/\s*\d.*$/, ""));
const groups = new Map([...new Set(types)].map(type => [type, types.flatMap((each, core) => (each === type ? [core] : []))])
  .filter(([, members]) => members.length >= GROUPED_FROM));
const shown = { path: path.length > 0, arrows: false };

const colours = {}, texts = {};
function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of [...kinds.map(painted), "ink", "back", "faint", "line"]) {
    colours[name] = style.getPropertyValue("--" + name).trim();
    texts[name] = bright(colours[name]) ? "#000000" : "#ffffff";
  }
}

// Whether black reads better on a colour (#rrggbb) than white: WCAG's relative luminance above 0.179.
function bright(colour) {
  const [r, g, b] = [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16) / 255)
    .map(part => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179;
}

const time = ns => (ns >= 1e6 ? (ns / 1e6).toFixed(3) + " ms" : ns >= 1e3 ? (ns / 1e3).toFixed(3) + " us" : ns.toFixed(0) + " ns");
const xOf = ns => LABEL + ((ns - left) / wide) * (width - LABEL);
const nsOf = x => left + ((x - LABEL) / (width - LABEL)) * wide;

// Rows: a group of cores; the tracks of a core, or one row for all of them where it is folded.
function layOut() {
  rows = [];
  let at = RULER, core = null, group = null;
  tracks.forEach((track, number) => {
    const fresh = track.core !== core, type = types[track.core];
    if (fresh && core !== null && !closed.has(type)) at += GAP;
    core = track.core;
    if (fresh && groups.has(type) && type !== group) {
      if (closed.has(type) && rows.length) at += GAP;
      rows.push({ top: at, high: GROUP, group: type, core: null, fresh, tracks: [] });
      at += GROUP + (closed.has(type) ? 0 : GAP);
    }
    group = type;
    if (closed.has(type)) return;
    if (!fresh && folded.has(core)) { rows[rows.length - 1].tracks.push(number); return; } // drawn over one another
    rows.push({ top: at, high: ROW, group: null, core, fresh, tracks: [number] });
    at += ROW;
  });
  tall = at + 4;
  const scale = devicePixelRatio || 1;
  width = canvas.clientWidth;
  canvas.style.height = tall + "px";
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(tall * scale);
  ink.setTransform(scale, 0, 0, scale, 0, 0);
}

// The first span of a track that ends behind a time; spans of a track do not overlap.
function firstVisible(track, ns) {
  let low = first[track], high = first[track + 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (begins[middle] + lengths[middle] < ns) low = middle + 1; else high = middle;
  }
  return low;
}

// Whether a span is none of those that were chosen or searched for.
const dimmed = i => (chosen !== null && columns[SUBOP][i] !== chosen) || (hits !== null && !hits.has(columns[NAME][i]));
const NAMED = new Set(["work", "compute", "movement", "numpy"]); // what waits is named when one points at it

// Spans of one level alone where one is given.
function drawTrack(track, top, level) {
  const pixel = wide / (width - LABEL), end = left + wide, stop = first[track + 1];
  let column = -1, drawn = 0; // kinds that this column of pixels has
  for (let i = firstVisible(track, left); i < stop && begins[i] <= end; i++) {
    const x = Math.max(LABEL, xOf(begins[i])), right = Math.min(width, xOf(begins[i] + lengths[i]));
    const kind = columns[KIND][i];
    if (level !== undefined && levels[kind] !== level) continue;
    if (lengths[i] < pixel) {
      if (Math.floor(x) !== column) drawn = 0;
      column = Math.floor(x);
      if (drawn & (1 << kind)) continue;
      drawn |= 1 << kind;
    }
    const dim = dimmed(i);
    ink.globalAlpha = dim ? 0.15 : 1;
    ink.fillStyle = colours[painted(kinds[kind])];
    ink.fillRect(x, top, Math.max(0.6, right - x), ROW - 2);
    if (right - x > 40 && !dim && NAMED.has(kinds[kind])) {
      ink.fillStyle = texts[painted(kinds[kind])];
      ink.save();
      ink.beginPath();
      ink.rect(x, top, right - x, ROW - 2);
      ink.clip();
      ink.fillText(names[columns[NAME][i]], x + 3, top + ROW / 2 + 3);
      ink.restore();
    }
  }
  ink.globalAlpha = 1;
}

const rowOfCore = core => rows.find(row => row.core === core) ?? rows.find(row => row.group === types[core]);
const rowOf = track => rows.find(row => row.tracks.includes(track)) ?? rowOfCore(tracks[track].core);

// How many cores of a group do what (of what is chosen), at times that only grow: a function of the time, which gives
// [kind, cores].
function activities(members) {
  const at = new Map(members.flatMap(core => tracksOf[core]).map(track => [track, firstVisible(track, left)]));
  return ns => {
    const found = new Map();
    for (const core of members) {
      let best = FOREMOST.length;
      for (const track of tracksOf[core]) {
        let i = at.get(track);
        while (i < first[track + 1] && begins[i] + lengths[i] < ns) i++;
        at.set(track, i);
        if (i < first[track + 1] && begins[i] <= ns && !dimmed(i)) best = Math.min(best, FOREMOST.indexOf(kinds[columns[KIND][i]]));
      }
      if (best < FOREMOST.length) found.set(best, (found.get(best) ?? 0) + 1);
    }
    return [...found].sort(([a], [b]) => a - b).map(([kind, many]) => [FOREMOST[kind], many]);
  };
}

function drawGroup(row) {
  const members = groups.get(row.group), does = activities(members), high = row.high - 2;
  for (let x = LABEL; x < width; x++) {
    let bottom = row.top + high;
    for (const [kind, many] of does(nsOf(x + 0.5))) {
      const part = (many / members.length) * high;
      ink.fillStyle = colours[painted(kind)];
      ink.fillRect(x, bottom - part, 1, part);
      bottom -= part;
    }
  }
}

function draw() {
  wide = Math.min(WHOLE, Math.max(5, wide));
  left = Math.min(WHOLE - wide, Math.max(0, left));
  ink.fillStyle = colours.back;
  ink.fillRect(0, 0, width, tall);
  ink.font = "10px system-ui, sans-serif";
  const step = [1, 2, 5].flatMap(n => [...Array(10).keys()].map(e => n * 10 ** e)).sort((a, b) => a - b).find(s => wide / s <= 10);
  for (let at = Math.ceil(left / step) * step; at <= left + wide; at += step) {
    ink.fillStyle = colours.line;
    ink.fillRect(xOf(at), 0, 1, tall);
    ink.fillStyle = colours.faint;
    const mark = time(at).replace(/\.(\d*?)0+ /, (_, digits) => (digits ? `.${digits} ` : " ")), x = xOf(at) + 3;
    if (x + ink.measureText(mark).width < width) ink.fillText(mark, x, 12);
  }
  for (const row of rows) {
    if (row.group !== null) {
      drawGroup(row);
      ink.fillStyle = colours.ink;
      ink.fillText((closed.has(row.group) ? "\u25b8 " : "\u25be ") + row.group, 4, row.top + row.high / 2);
      ink.fillStyle = colours.faint;
      ink.fillText(`${groups.get(row.group).length} cores`, LABEL - 62, row.top + row.high / 2);
      continue;
    }
    const passes = row.tracks.length > 1 ? LEVELS.keys() : [undefined];
    for (const level of passes) for (const track of row.tracks) drawTrack(track, row.top, level);
    ink.fillStyle = colours.ink;
    const many = folded.has(row.core);
    if (row.fresh) ink.fillText((many ? "\u25b8 " : "\u25be ") + cores[row.core], 4, row.top + ROW / 2 + 3);
    ink.fillStyle = colours.faint;
    ink.fillText(many ? "all" : tracks[row.tracks[0]].name, LABEL - 62, row.top + ROW / 2 + 3);
  }
  if (shown.path) drawPath();
  if (shown.arrows) drawArrows();
  if (range) {
    ink.fillStyle = colours.ink;
    ink.globalAlpha = 0.12;
    ink.fillRect(xOf(range[0]), RULER, xOf(range[1]) - xOf(range[0]), tall);
    ink.globalAlpha = 1;
  }
}

function drawPath() {
  ink.strokeStyle = colours.ink;
  ink.lineWidth = 2;
  ink.beginPath();
  let last = null;
  for (const [core, begin, end] of path) {
    const row = rowOfCore(core);
    if (!row || end < left || begin > left + wide) { last = null; continue; }
    const y = row.top + row.high - 1.5, x = Math.max(LABEL, xOf(begin));
    if (last !== null) ink.lineTo(x, y); else ink.moveTo(x, y);
    ink.lineTo(Math.max(LABEL, xOf(end)), y);
    last = y;
  }
  ink.stroke();
  ink.lineWidth = 1;
}

function drawArrows() {
  const seen = flows.filter(([, at, , to]) => to >= left && at <= left + wide);
  ink.strokeStyle = ink.fillStyle = colours.ink;
  for (const [from, at, to, until] of seen.slice(0, ARROWS_MAX)) {
    const [a, b] = [rowOf(from), rowOf(to)], x = xOf(until), y = b.top + b.high / 2;
    if (xOf(at) < LABEL || x < LABEL) continue;
    ink.beginPath();
    ink.moveTo(xOf(at), a.top + a.high / 2);
    ink.lineTo(x, y);
    ink.stroke();
    ink.fillRect(x - 2, y - 2, 4, 4);
  }
  if (seen.length > ARROWS_MAX) status.textContent = `${ARROWS_MAX} of ${seen.length} arrows are drawn: zoom in for the rest`;
}

const rowAt = y => rows.find(each => y >= each.top && y < each.top + each.high);

function spanAt(x, y) {
  const row = rowAt(y);
  if (!row || x < LABEL) return -1;
  let found = -1;
  for (const track of row.tracks) {
    const i = firstVisible(track, nsOf(x - 1));
    if (i >= first[track + 1] || begins[i] > nsOf(x + 1)) continue;
    if (found < 0 || levels[columns[KIND][i]] > levels[columns[KIND][found]]) found = i;
  }
  return found;
}

function describe(i) {
  const subop = columns[SUBOP][i], why = columns[DETAIL][i];
  const lines = [names[columns[NAME][i]], `${told(kinds[columns[KIND][i]])}, ${time(lengths[i])} from ${time(begins[i])}`];
  if (subop >= 0) lines.push(`sub-operator ${subop} (${data.subops[subop] ?? ""})`);
  if (why >= 0) lines.push(details[why]);
  return lines.join("\n");
}

// Who of some cores waits longest at a time, and why; nothing where nobody is known to.
function longestWait(members, ns) {
  let worst = -1;
  for (const track of members.flatMap(core => tracksOf[core])) {
    const i = firstVisible(track, ns);
    if (i < first[track + 1] && begins[i] <= ns && columns[DETAIL][i] >= 0 && (worst < 0 || lengths[i] > lengths[worst])) worst = i;
  }
  return worst < 0 ? [] : [`longest: ${details[columns[DETAIL][worst]]}, ${time(lengths[worst])}`];
}

// What one points at in a group's row.
function crowd(x, y) {
  const row = rowAt(y);
  if (!row || row.group === null || x < LABEL) return "";
  const ns = nsOf(x), members = groups.get(row.group), does = activities(members)(ns);
  const waits = does.some(([kind]) => kind === "wait" || kind === "imbalance") ? longestWait(members, ns) : [];
  const sums = new Map();
  for (const [kind, many] of does) sums.set(told(kind), (sums.get(told(kind)) ?? 0) + many);
  return [`${row.group} at ${time(ns)}, ${members.length} cores`, ...[...sums].map(([part, many]) => `${many} ${part}`), ...waits].join("\n");
}

function totals(from, to) {
  const sums = {};
  for (let t = 0; t < tracks.length; t++) {
    for (let i = firstVisible(t, from); i < first[t + 1] && begins[i] < to; i++) {
      const inside = Math.min(to, begins[i] + lengths[i]) - Math.max(from, begins[i]);
      const part = told(kinds[columns[KIND][i]]);
      if (inside > 0) sums[part] = (sums[part] ?? 0) + inside;
    }
  }
  const said = Object.entries(sums).sort((a, b) => b[1] - a[1]).map(([part, ns]) => `${part} ${time(ns)}`);
  return `${time(from)} to ${time(to)} (${time(to - from)}), all tracks together: ${said.join(", ") || "nothing"}`;
}

function choose(subop) {
  chosen = subop === null || subop === chosen || subop < 0 ? null : subop;
  for (const row of document.querySelectorAll("[data-subop]")) {
    row.classList.toggle("chosen", chosen !== null && Number(row.dataset.subop) === chosen);
  }
  draw();
}

function zoom(factor, at) {
  const share = (at - left) / wide;
  wide = Math.min(WHOLE, Math.max(5, wide * factor));
  left = at - share * wide;
  draw();
}

const place = event => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
canvas.addEventListener("wheel", event => {
  if (!event.ctrlKey && Math.abs(event.deltaX) > Math.abs(event.deltaY)) { left += (event.deltaX * wide) / 1000; draw(); }
  else zoom(Math.exp(event.deltaY / 400), nsOf(place(event)[0]));
  event.preventDefault();
}, { passive: false });
canvas.addEventListener("pointerdown", event => {
  grip = { ns: nsOf(place(event)[0]), range: event.shiftKey };
  moved = false;
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointerup", event => {
  const [x, y] = place(event);
  if (grip && !moved) {
    const row = rowAt(y);
    if (x < LABEL && row) fold(row);
    else { const i = spanAt(x, y); choose(i < 0 ? null : columns[SUBOP][i]); }
  }
  grip = null;
});
canvas.addEventListener("pointermove", event => {
  const [x, y] = place(event);
  if (grip && grip.range) {
    range = [grip.ns, nsOf(x)].sort((a, b) => a - b);
    moved = true;
    status.textContent = totals(...range);
    draw();
  } else if (grip) {
    const next = left + grip.ns - nsOf(x);
    moved = moved || Math.abs(next - left) > wide / 300;
    left = next;
    draw();
  }
  const i = grip ? -1 : spanAt(x, y), said = i >= 0 ? describe(i) : grip ? "" : crowd(x, y);
  tip.style.display = said ? "block" : "none";
  if (!said) return;
  tip.textContent = said;
  tip.style.left = Math.max(0, Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = Math.min(event.clientY + 12, innerHeight - tip.offsetHeight - 8) + "px";
});
canvas.addEventListener("pointerleave", () => { tip.style.display = "none"; });
canvas.addEventListener("dblclick", () => whole());
canvas.addEventListener("keydown", event => {
  const middle = left + wide / 2;
  const act = {
    ArrowLeft: () => { left -= wide / 8; draw(); }, ArrowRight: () => { left += wide / 8; draw(); },
    "+": () => zoom(0.7, middle), "=": () => zoom(0.7, middle), "-": () => zoom(1.4, middle), 0: whole, Escape: () => choose(null),
  }[event.key];
  if (!act) return;
  act();
  status.textContent = totals(left, left + wide);
  event.preventDefault();
});

function whole() { left = 0; wide = WHOLE; range = null; draw(); }

function fold(row) {
  const [these, what] = row.group === null ? [folded, row.core] : [closed, row.group];
  if (!these.delete(what)) these.add(what);
  layOut();
  draw();
}

function pressed(id, act) {
  const button = document.getElementById(id);
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(on));
    act(on);
    draw();
  });
}
pressed("path", on => { shown.path = on; });
pressed("arrows", on => { shown.arrows = on; });
pressed("groups", on => {
  closed.clear();
  if (on) for (const type of groups.keys()) closed.add(type);
  layOut();
});
pressed("fold", on => {
  folded.clear();
  if (on) for (const track of tracks) folded.add(track.core);
  layOut();
});
document.getElementById("whole").addEventListener("click", whole);
document.getElementById("search").addEventListener("input", event => {
  const wanted = event.target.value.trim().toLowerCase();
  hits = wanted ? new Set(names.flatMap((name, n) => (name.toLowerCase().includes(wanted) ? [n] : []))) : null;
  status.textContent = hits ? `${[...hits].reduce((sum, name) => sum + uses[name], 0)} of ${count} spans` : "";
  draw();
});

document.getElementById("legend").append(...data.legend.map(([colour, text]) => {
  const item = document.createElement("span"), key = document.createElement("i");
  key.className = "key";
  key.style.background = `var(--${colour})`;
  item.append(key, text);
  return item;
}));

for (const body of document.querySelectorAll("tbody, #graph")) {
  body.addEventListener("click", event => {
    const row = event.target.closest("[data-subop]");
    if (row) { choose(Number(row.dataset.subop)); document.getElementById("timeline").scrollIntoView({ block: "nearest" }); }
  });
  body.addEventListener("keydown", event => { if (event.key === "Enter") event.target.dispatchEvent(new MouseEvent("click", { bubbles: true })); });
}

function again() { readColours(); layOut(); draw(); }
if (tracks.length > 64) { for (const track of tracks) folded.add(track.core); document.getElementById("fold").setAttribute("aria-pressed", "true"); }
for (const type of groups.keys()) closed.add(type);
document.getElementById("groups").hidden = groups.size === 0;
for (const [id, things] of [["path", path], ["arrows", flows]]) document.getElementById(id).hidden = things.length === 0;
document.getElementById("path").setAttribute("aria-pressed", String(shown.path));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
addEventListener("resize", again);
again();
