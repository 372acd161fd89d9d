"use strict";
// What accessibility.py asks of a page beside axe-core: what is wrong with it, what has the focus, how much can have it.
function wrongWithPage() {
  const found = [], say = (rule, element) => found.push(rule + ": " + element.outerHTML.slice(0, 120));
  const all = [...document.querySelectorAll("*")];
  const seen = e => e.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true }) && e.getClientRects().length > 0;
  const root = document.documentElement;
  if (document.querySelectorAll("h1").length !== 1) say("not one first heading", document.body);
  const ids = new Map();
  for (const e of all) if (e.id) ids.set(e.id, (ids.get(e.id) ?? 0) + 1);
  for (const e of all) {
    if (e.id && ids.get(e.id) > 1) say("id twice", e);
    if (e.tagName === "TABLE" && e.rows.length && !e.querySelector("th")) say("a table without heads", e);
    if (e.tagName === "LABEL" && !e.control) say("a label of nothing", e);
    const style = getComputedStyle(e), scrolls = /auto|scroll/.test(style.overflowX + style.overflowY);
    const more = e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1;
    if (scrolls && more && seen(e) && e !== root && e !== document.body && e.tabIndex < 0) {
      const inside = e.querySelector("a[href], button, input, [tabindex='0']");
      if (!inside) say("it scrolls, and cannot be reached", e);
    }
  }
  const parse = text => {
    const srgb = /^color\(srgb ([^)]*)\)$/.exec(text);
    const parts = (srgb ? srgb[1] : text).match(/[\d.]+/g).map(Number);
    const [r, g, b, a = 1] = parts;
    return srgb ? [r * 255, g * 255, b * 255, a] : [r, g, b, a];
  };
  const over = ([r, g, b, a], [x, y, z]) => [r * a + x * (1 - a), g * a + y * (1 - a), b * a + z * (1 - a)];
  const ground = e => {
    const layers = [];
    for (let at = e; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
    const base = matchMedia("(prefers-color-scheme: dark)").matches && /dark/.test(getComputedStyle(root).colorScheme) ? 18 : 255;
    return layers.reverse().reduce((below, layer) => over(layer, below), [base, base, base]);
  };
  const light = colour => {
    const [r, g, b] = colour.map(v => { const c = v / 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (one, other) => { const [a, b] = [light(one), light(other)]; return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const met = new Set();
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || met.has(e) || !seen(e) || e.closest("script, style, noscript")) continue;
    met.add(e);
    const style = getComputedStyle(e), size = parseFloat(style.fontSize), below = ground(e);
    const svg = e.namespaceURI.endsWith("svg");
    const text = over(parse(svg ? style.fill : style.color), below), got = ratio(text, below);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (got < (large ? 3 : 4.5) - 0.01) say(`contrast of a text is ${got.toFixed(2)}`, e);
  }
  for (const e of document.querySelectorAll("button, input, select")) {
    const style = getComputedStyle(e);
    if (!seen(e) || parseFloat(style.borderTopWidth) === 0) continue;
    const got = ratio(over(parse(style.borderTopColor), ground(e.parentElement)), ground(e.parentElement));
    if (e.tagName !== "BUTTON" && got < 3) say(`contrast of a border is ${got.toFixed(2)}`, e);
  }
  return found;
}

function focused() {
  const e = document.activeElement;
  if (!e || e === document.body || e === document.documentElement) return null;
  const style = getComputedStyle(e), box = e.getBoundingClientRect();
  const marked = (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0) || style.boxShadow !== "none";
  return { at: [...document.querySelectorAll("*")].indexOf(e), marked, size: box.width * box.height, what: e.outerHTML.slice(0, 120) };
}

function focusable() {
  const all = document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]");
  return [...all].filter(e => e.tabIndex >= 0 && !e.disabled && e.checkVisibility({ checkVisibilityCSS: true })).length;
}
