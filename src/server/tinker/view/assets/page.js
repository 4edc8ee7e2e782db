// The live page: asks /page/overview every two seconds, the list of checkpoints every ten, and draws what they say. All
// text of clients goes through textContent.
'use strict';

const KEY = 'strata-key';
const COLOURS = 6;
const $ = (id) => document.getElementById(id);
const compared = new Set();  // runs that share the large chart
let latest = null;

function element(tag, text, className) {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (className) e.className = className;
  return e;
}

function bytes(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) { n /= 1024; i++; }
  return n.toFixed(i === 0 ? 0 : 1) + ' ' + units[i];
}

const whole = (n) => Number(n).toLocaleString('en');

// How long ago, with the local time to point at. `when`: seconds since 1970.
function age(when) {
  const seconds = Math.max(0, Date.now() / 1000 - when);
  const [n, unit] = seconds < 90 ? [seconds, 's'] : seconds < 5400 ? [seconds / 60, 'min'] :
                    seconds < 129600 ? [seconds / 3600, 'h'] : [seconds / 86400, 'days'];
  const e = element('span', `${Math.round(n)} ${unit} ago`);
  e.title = new Date(when * 1000).toLocaleString();
  return e;
}

// columns: [{name, className, cell: (item) => text or node}]
function table(place, list, columns, empty) {
  if (list.length === 0) return place.replaceChildren(element('div', empty, 'dim'));
  const head = element('tr');
  for (const c of columns) head.append(element('th', c.name, c.className));
  const body = element('tbody');
  for (const item of list) {
    const tr = element('tr');
    for (const c of columns) {
      const td = element('td', undefined, c.className);
      td.append(c.cell(item));
      tr.append(td);
    }
    body.append(tr);
  }
  const out = element('table');
  out.append(element('thead'), body);
  out.firstChild.append(head);
  const scroll = element('div', undefined, 'table');
  scroll.append(out);
  place.replaceChildren(scroll);
}

function curvesOf(run, colour) {
  const lines = [{className: 'k' + colour, points: run.curve}];
  if (run.evaluations.length) lines.push({className: `evaluation k${colour}`, points: run.evaluations});
  return lines;
}

function lossesOf(run) {
  const last = (curve) => short(curve[curve.length - 1][1]);
  let text = `step ${whole(run.steps)}`;
  if (run.curve.length) text += `, loss ${last(run.curve)}`;
  if (run.evaluations.length) text += `, evaluation loss ${last(run.evaluations)}`;
  if (run.in_flight) text += `, in flight: ${run.in_flight}`;
  return text;
}

function runCard(run) {
  const card = element('div', undefined, 'run');
  card.dataset.run = run.id;
  card.dataset.points = run.curve.length;
  card.dataset.evaluations = run.evaluations.length;
  const title = element('div', undefined, 'title');
  const choose = element('label', 'compare ', 'dim');
  const box = element('input');
  box.type = 'checkbox';
  box.checked = compared.has(run.id);
  box.addEventListener('change', () => {
    if (box.checked) compared.add(run.id); else compared.delete(run.id);
    drawCompared();
  });
  choose.append(box);
  title.append(element('span', run.name || run.base, 'name'), choose);
  const about = element('div', `${run.base}, rank ${run.rank}, ${run.tenant}, started `, 'dim');
  about.append(age(run.started), run.live ? '' : ', ended');
  const svg = shape('svg', {class: 'chart', role: 'img', 'aria-label': 'loss by step'});
  card.append(title, element('div', run.id, 'id'), about, element('div', lossesOf(run)), svg);
  card.draw = () => draw(svg, curvesOf(run, 0), {log: wantsLog(curvesOf(run, 0)), xName: 'step'});
  return card;
}

function drawCompared() {
  const runs = latest.runs.filter((run) => compared.has(run.id)).slice(0, COLOURS);
  $('compared').hidden = runs.length === 0;
  const lines = runs.flatMap((run, i) => curvesOf(run, i));
  draw($('curves'), lines, {log: $('log').checked, xName: 'step'});
  $('legend').replaceChildren(...runs.map((run, i) => {
    const e = element('span');
    e.append(element('span', undefined, 'dot b' + i), `${run.name || run.id}: ${lossesOf(run)}`);
    return e;
  }));
}

// What all tenants do together: for administrators.
function showServer(data) {
  const numbers = [[short(Math.round(data.rate.train)), 'tokens/s trained'], [short(Math.round(data.rate.sample)), 'tokens/s sampled'],
                   [data.queues.running, 'samples running'], [data.queues.samples, 'samples queued'],
                   [data.queues.training, 'training operations queued'], [data.queues.polls, 'polls waiting']];
  $('numbers').replaceChildren(...numbers.map(([value, name]) => {
    const e = element('span');
    e.append(element('b', String(value)), element('small', name));
    return e;
  }));
  draw($('rates'), [{className: 'k0', points: data.history.map((r, i) => [i, r[0]])},
                    {className: 'k1', points: data.history.map((r, i) => [i, r[1]])}], {fromZero: true});
  table($('memory'), data.memory, [
    {name: 'use', cell: (m) => m.use}, {name: 'taken', className: 'number', cell: (m) => bytes(m.bytes)},
    {name: 'planned', className: 'number', cell: (m) => bytes(m.limit)},
    {name: '', cell: (m) => {
      const bar = element('progress');
      bar.max = Math.max(m.limit, 1);
      bar.value = m.bytes;
      return bar;
    }}], 'nothing yet');
}

function show(data) {
  latest = data;
  for (const part of document.querySelectorAll('.server')) part.hidden = !data.server;
  if (data.server) showServer(data.server);
  const cards = data.runs.map(runCard);
  $('runs').replaceChildren(...(cards.length ? cards : [element('div', 'none yet', 'dim')]));
  for (const card of cards) card.draw();
  drawCompared();
  table($('adapters'), data.adapters, [
    {name: 'model', className: 'wide', cell: (a) => a.id}, {name: 'base', cell: (a) => a.base},
    {name: 'rank', className: 'number', cell: (a) => String(a.rank)}, {name: 'tenant', cell: (a) => a.tenant}], 'none');
  table($('usage'), data.usage, [
    {name: 'tenant', cell: (u) => u.tenant}, {name: 'key', cell: (u) => u.key},
    {name: 'requests', className: 'number', cell: (u) => whole(u.requests)},
    {name: 'tokens trained', className: 'number', cell: (u) => whole(u.trained)},
    {name: 'tokens sampled', className: 'number', cell: (u) => whole(u.sampled)},
    {name: 'prompt tokens', className: 'number', cell: (u) => whole(u.prompt)}], 'none yet');
  table($('models'), data.models, [
    {name: 'name', cell: (m) => m.name}, {name: 'architecture', cell: (m) => m.architecture},
    {name: 'context', className: 'number', cell: (m) => whole(m.max_context)}], 'none');
}

function ask(path) {
  const key = sessionStorage.getItem(KEY);
  return fetch(path, {headers: key ? {'X-API-Key': key} : {}, cache: 'no-store'});
}

function post(path, body, signal) {
  const key = sessionStorage.getItem(KEY);
  const headers = {'Content-Type': 'application/json', ...(key ? {'X-API-Key': key} : {})};
  return fetch(path, {method: 'POST', headers, body: JSON.stringify(body), signal, cache: 'no-store'});
}

// The archive is packed on the first call; the address that comes back is good for a while and needs no key.
async function download(button, path) {
  const [run, kind, id] = path.slice('tinker://'.length).split('/');
  button.disabled = true;
  button.textContent = 'packing';
  try {
    const response = await ask(`api/v1/training_runs/${run}/checkpoints/${kind}/${id}/archive`);
    if (!response.ok) throw new Error('HTTP ' + response.status);
    const url = new URL((await response.json()).url);
    location.assign(url.pathname + url.search);  // of this server, by whatever name the page was opened
  } catch (error) {
    button.title = String(error);
  }
  button.disabled = false;
  button.textContent = 'download';
}

function showSaved(data) {
  table($('saved'), data.checkpoints, [
    {name: 'path', className: 'wide', cell: (c) => c.tinker_path}, {name: 'kind', cell: (c) => c.checkpoint_type},
    {name: 'size', className: 'number', cell: (c) => bytes(c.size_bytes)},
    {name: 'saved', cell: (c) => age(Date.parse(c.time) / 1000)},
    {name: '', cell: (c) => {
      if (c.checkpoint_type === 'external') return '';
      const button = element('button', 'download');
      button.addEventListener('click', () => download(button, c.tinker_path));
      return button;
    }}], 'none yet: save_state() and save_weights_for_sampler() make them');
}

async function refreshSaved() {
  if ($('main').hidden) return;
  try {
    const response = await ask('api/v1/checkpoints?limit=100');
    if (!response.ok) return;
    const data = await response.json();
    showSaved(data);
    await refreshChoices(data.checkpoints);
  } catch (error) {
    return;  // the overview says that the server does not answer
  }
}

async function refresh() {
  const key = sessionStorage.getItem(KEY);
  let response;
  try {
    response = await ask('page/overview');
  } catch (error) {
    $('state').textContent = 'the server does not answer';
    return;
  }
  const refused = response.status === 401;
  const opens = !refused && $('main').hidden;
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
  if (opens) refreshSaved();
}

$('login').addEventListener('submit', (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $('key').value.trim());
  $('key').value = '';
  refresh();
});
$('forget').addEventListener('click', () => {
  sessionStorage.removeItem(KEY);
  compared.clear();
  refresh();
});
$('log').addEventListener('change', drawCompared);
window.addEventListener('resize', () => { if (latest) show(latest); });
refresh();
setInterval(refresh, 2000);
setInterval(refreshSaved, 10000);
