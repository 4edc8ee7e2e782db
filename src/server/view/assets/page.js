// The live page: asks /page/overview every two seconds and draws what it says. All text of clients
// goes through textContent.
'use strict';

const KEY = 'strata-key';
const $ = (id) => document.getElementById(id);
const SVG = 'http://www.w3.org/2000/svg';

function element(tag, text, className) {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (className) e.className = className;
  return e;
}

function shape(tag, attributes) {
  const e = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  return e;
}

function bytes(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) { n /= 1024; i++; }
  return n.toFixed(i === 0 ? 0 : 1) + ' ' + units[i];
}

function short(x) {
  if (!Number.isFinite(x)) return '';
  return Math.abs(x) >= 1000 ? x.toFixed(0) : String(Number(x.toPrecision(4)));
}

// lines: [{className, points: [[x, y], ...]}]; from zero if asked, else from the smallest value.
function draw(svg, lines, W, fromZero) {
  const H = 120, left = 46, bottom = 16, top = 8;
  const all = lines.flatMap((l) => l.points);
  svg.setAttribute('viewBox', `0 0 ${W} ${H}`);
  svg.replaceChildren();
  if (all.length === 0) return;
  const xs = all.map((p) => p[0]), ys = all.map((p) => p[1]);
  const x0 = Math.min(...xs), x1 = Math.max(...xs);
  let y0 = fromZero ? 0 : Math.min(...ys), y1 = Math.max(...ys);
  if (y1 <= y0) { y1 = y0 + (Math.abs(y0) || 1) * 0.1; }
  const X = (x) => left + (x1 > x0 ? (x - x0) / (x1 - x0) : 0.5) * (W - left - 6);
  const Y = (y) => top + (1 - (y - y0) / (y1 - y0)) * (H - top - bottom);
  svg.append(shape('line', {x1: left, x2: W, y1: Y(y0), y2: Y(y0)}));
  for (const [y, at] of [[y1, top + 8], [y0, H - bottom]]) {
    const label = shape('text', {x: 0, y: at});
    label.textContent = short(y);
    svg.append(label);
  }
  for (const [x, anchor] of [[x0, 'start'], [x1, 'end']]) {
    if (fromZero) break;
    const label = shape('text', {x: X(x), y: H - 3, 'text-anchor': anchor});
    label.textContent = 'step ' + x;
    svg.append(label);
  }
  for (const line of lines) {
    const points = line.points.map((p) => X(p[0]).toFixed(1) + ',' + Y(p[1]).toFixed(1));
    if (points.length === 1) points.push(points[0]);
    svg.append(shape('polyline', {class: line.className, points: points.join(' ')}));
  }
}

function rows(body, list, cells) {
  body.replaceChildren(...list.map((item) => {
    const tr = element('tr');
    for (const cell of cells(item)) {
      const td = element('td');
      if (cell instanceof Node) td.append(cell); else td.textContent = cell;
      tr.append(td);
    }
    return tr;
  }));
}

function runCard(run) {
  const card = element('div', undefined, 'run');
  card.dataset.run = run.id;
  card.dataset.points = run.curve.length;
  const last = run.curve.length ? run.curve[run.curve.length - 1] : null;
  card.append(element('div', run.id, 'id'),
              element('div', `${run.base}, rank ${run.rank}, ${run.tenant}, started ${run.started}` +
                             (run.live ? '' : ', ended'), 'dim'),
              element('div', last ? `step ${run.steps}, loss ${short(last[1])}` : `step ${run.steps}`));
  const svg = shape('svg', {class: 'chart', role: 'img', 'aria-label': 'loss by step'});
  draw(svg, [{className: 'train', points: run.curve}], 320, false);
  card.append(svg);
  return card;
}

// What all tenants do together: for administrators.
function showServer(data) {
  const numbers = [['train', data.rate.train.toFixed(0), 'tokens/s trained'],
                   ['sample', data.rate.sample.toFixed(0), 'tokens/s sampled'],
                   ['', data.queues.running, 'samples running'],
                   ['', data.queues.samples, 'samples queued'],
                   ['', data.queues.training, 'training operations queued'],
                   ['', data.queues.polls, 'polls waiting']];
  $('numbers').replaceChildren(...numbers.map(([, value, name]) => {
    const e = element('span');
    e.append(element('b', String(value)), element('small', name));
    return e;
  }));
  draw($('rates'), [{className: 'train', points: data.history.map((r, i) => [i, r[0]])},
                    {className: 'sample', points: data.history.map((r, i) => [i, r[1]])}], 1050, true);
  rows($('memory'), data.memory, (m) => {
    const bar = element('progress');
    bar.max = Math.max(m.limit, 1);
    bar.value = m.bytes;
    return [m.use, bytes(m.bytes), bytes(m.limit), bar];
  });
}

function show(data) {
  for (const part of document.querySelectorAll('.server')) part.hidden = !data.server;
  if (data.server) showServer(data.server);
  $('runs').replaceChildren(...(data.runs.length ? data.runs.map(runCard)
                                                 : [element('div', 'none yet', 'dim')]));
  rows($('adapters'), data.adapters, (a) => [a.id, a.base, a.rank, a.tenant]);
  rows($('usage'), data.usage, (u) => [u.tenant, u.key, u.requests, u.trained, u.sampled]);
  rows($('models'), data.models, (m) => [m.name, m.architecture, m.max_context]);
}

async function refresh() {
  const key = sessionStorage.getItem(KEY);
  let response;
  try {
    response = await fetch('page/overview', {headers: key ? {'X-API-Key': key} : {}, cache: 'no-store'});
  } catch (error) {
    $('state').textContent = 'the server does not answer';
    return;
  }
  const refused = response.status === 401;
  $('login').hidden = !refused;
  $('main').hidden = refused;
  $('forget').hidden = refused || !key;
  if (refused) {
    $('state').textContent = 'a key is needed';
    $('refused').textContent = key ? 'this is no key of this server' : '';
    return;
  }
  if (!response.ok) { $('state').textContent = 'HTTP ' + response.status; return; }
  const data = await response.json();
  $('state').textContent = (data.admin ? 'all tenants' : 'your runs') + ', ' + new Date().toLocaleTimeString();
  show(data);
}

$('login').addEventListener('submit', (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $('key').value.trim());
  $('key').value = '';
  refresh();
});
$('forget').addEventListener('click', () => { sessionStorage.removeItem(KEY); refresh(); });
refresh();
setInterval(refresh, 2000);
