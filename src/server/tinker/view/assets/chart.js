// Curves as SVG. A line is {className, points: [[x, y], ...]}.
'use strict';

const SVG = 'http://www.w3.org/2000/svg';

function shape(tag, attributes) {
  const e = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  return e;
}

function label(svg, text, attributes) {
  const e = shape('text', attributes);
  e.textContent = text;
  svg.append(e);
}

function short(x) {
  if (!Number.isFinite(x)) return '';
  if (Math.abs(x) >= 10000) return x.toLocaleString('en', {maximumFractionDigits: 0});
  return String(Number(x.toPrecision(3)));
}

// A loss that falls twentyfold is a flat line on a linear axis.
function wantsLog(lines) {
  const ys = lines.flatMap((l) => l.points.map((p) => p[1]));
  return ys.length > 0 && Math.min(...ys) > 0 && Math.max(...ys) / Math.min(...ys) > 10;
}

// Values with a line each: powers of ten and their halves on a log axis, else the ends and two between.
function ticks(y0, y1, isLog) {
  if (!isLog) return [0, 1, 2, 3].map((i) => y0 + (y1 - y0) * i / 3);
  const out = [];
  for (let e = Math.floor(Math.log10(y0)); e <= Math.ceil(Math.log10(y1)); e++) {
    for (const m of [1, 3]) out.push(m * 10 ** e);
  }
  const inside = out.filter((y) => y >= y0 && y <= y1);
  return inside.length >= 2 ? inside : [y0, y1];
}

// options: {fromZero, log, xName}. Drawn at the size that it has, so that text keeps its own.
function draw(svg, lines, options) {
  const W = Math.max(svg.clientWidth, 240), H = Math.max(svg.clientHeight, 100);
  const left = 48, bottom = 18, top = 8, right = 10;
  svg.setAttribute('viewBox', `0 0 ${W} ${H}`);
  svg.replaceChildren();
  const all = lines.flatMap((l) => l.points);
  if (all.length === 0) {
    label(svg, 'no step yet', {x: W / 2, y: H / 2, 'text-anchor': 'middle'});
    return;
  }
  const xs = all.map((p) => p[0]), ys = all.map((p) => p[1]);
  const x0 = Math.min(...xs), x1 = Math.max(...xs);
  let y0 = options.fromZero ? 0 : Math.min(...ys), y1 = Math.max(...ys);
  if (y1 <= y0) y1 = y0 + (Math.abs(y0) || 1) * 0.1;
  const isLog = options.log && y0 > 0;
  const at = (y) => (isLog ? Math.log(y) : y);
  const X = (x) => left + (x1 > x0 ? (x - x0) / (x1 - x0) : 0.5) * (W - left - right);
  const Y = (y) => top + (1 - (at(y) - at(y0)) / (at(y1) - at(y0))) * (H - top - bottom);
  for (const y of ticks(y0, y1, isLog)) {
    svg.append(shape('line', {x1: left, x2: W - right, y1: Y(y), y2: Y(y)}));
    label(svg, short(y), {x: left - 6, y: Y(y) + 4, 'text-anchor': 'end'});
  }
  if (options.xName) {
    label(svg, `${options.xName} ${short(x0)}`, {x: left, y: H - 3});
    if (x1 > x0) label(svg, short(x1), {x: W - right, y: H - 3, 'text-anchor': 'end'});
    if (isLog) label(svg, 'log axis', {x: W / 2, y: H - 3, 'text-anchor': 'middle'});
  }
  for (const line of lines) {
    const points = line.points.map((p) => X(p[0]).toFixed(1) + ',' + Y(p[1]).toFixed(1));
    if (points.length === 1) points.push(points[0]);
    svg.append(shape('polyline', {class: line.className, points: points.join(' ')}));
    // A line of one point does not show, and evaluations are few.
    if (line.points.length > 1 && !line.className.includes('evaluation')) continue;
    for (const [x, y] of line.points) svg.append(shape('circle', {class: line.className, cx: X(x), cy: Y(y), r: 2.5}));
  }
}
