// The playground: one question to one model, or to two side by side, over /v1/chat/completions as a stream. Nothing is
// stored; the conversation goes with the page or the key. Text of models goes through textContent.
'use strict';

const TOP = 5;                         // likeliest tokens that are told of each token
const BANDS = [0.9, 0.5, 0.1, 0.01];  // least probability of each colour; the last is below all
const panes = [{select: $('left')}, {select: $('right')}];
let running = null;  // an AbortController while answers come

const percent = (logprob) => {
  const p = 100 * Math.exp(logprob);
  return p >= 0.1 || p === 0 ? p.toFixed(1) + ' %' : p.toExponential(0) + ' %';
};
const band = (logprob) => {
  const i = BANDS.findIndex((least) => Math.exp(logprob) >= least);
  return i < 0 ? BANDS.length : i;
};

// What can be asked: bases and adapters by name, and saved sampler weights by path.
async function refreshChoices(saved) {
  const response = await ask('v1/models');
  if (!response.ok) return;
  const names = (await response.json()).data.map((m) => m.id);
  const paths = saved.filter((c) => c.checkpoint_type === 'sampler').map((c) => c.tinker_path);
  const all = [...names, ...paths].join('\n');
  for (const [i, {select}] of panes.entries()) {
    if (select.dataset.all === all) continue;
    const chosen = select.value;
    const option = (name) => new Option(name.startsWith('tinker://') ? name.slice('tinker://'.length) : name, name);
    select.replaceChildren(...(i === 1 ? [new Option('one model alone', '')] : []), ...names.map(option), ...paths.map(option));
    if (names.includes(chosen) || paths.includes(chosen)) select.value = chosen;
    select.dataset.all = all;
  }
}

function forgetConversation() {
  if (running) running.abort();
  for (const pane of panes) {
    pane.turns = [];  // {role, content}
    if (!pane.place) {
      pane.place = element('div', undefined, 'pane');
      $('answers').append(pane.place);
    }
    pane.place.replaceChildren();
  }
  arrange();
}

function arrange() {
  panes[1].place.hidden = !panes[1].select.value;
  $('answers').classList.toggle('two', !panes[1].place.hidden);
}

function addTurn(pane, role, text) {
  const turn = element('div', undefined, 'turn ' + role);
  const plain = element('div', text, 'plain');
  turn.append(element('small', role === 'user' ? 'you' : pane.select.selectedOptions[0].text), plain);
  pane.place.append(turn);
  return {turn, plain};
}

// A token as it was sampled, coloured by its probability. Characters whose bytes come in several tokens stand in the last.
function tokenSpan(told, decoder) {
  const text = told.bytes ? decoder.decode(new Uint8Array(told.bytes), {stream: true}) : told.token;
  const span = element('span', text, 'p' + band(told.logprob));
  const lines = (told.top_logprobs || []).map((t) => `${percent(t.logprob)}  ${JSON.stringify(t.token)}`);
  span.title = [`${percent(told.logprob)}  ${JSON.stringify(told.token)}`, ...(lines.length ? ['likeliest:'] : []), ...lines].join('\n');
  return span;
}

// The events of a stream, as JSON; a fault that it tells is thrown.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    const lines = (rest + value).split('\n');
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith('data:')) continue;
      const text = line.slice('data:'.length).trim();
      if (text === '[DONE]') return;
      const event = JSON.parse(text);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

function parseSchema(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error('the schema is no JSON: ' + error.message);
  }
}

function question(pane) {
  const messages = [...pane.turns];
  const system = $('system').value.trim();
  if (system) messages.unshift({role: 'system', content: system});
  const body = {model: pane.select.value, messages, stream: true, logprobs: true, top_logprobs: TOP};
  for (const [field, id] of [['temperature', 'temperature'], ['max_tokens', 'most']]) {
    if ($(id).value !== '') body[field] = Number($(id).value);
  }
  const schema = $('schema').value.trim();
  if (schema) body.response_format = {type: 'json_schema', json_schema: {name: 'schema', schema: parseSchema(schema)}};
  return body;
}

async function answer(pane, signal) {
  const turns = pane.turns;  // of this conversation, if another one begins meanwhile
  const {turn, plain} = addTurn(pane, 'assistant', '');
  const thought = element('div', undefined, 'thought dim'), tokens = element('div', undefined, 'tokens');
  const end = element('small');
  turn.append(tokens, end);
  plain.before(thought);
  const decoder = new TextDecoder();
  let count = 0, content = '', why = '';
  try {
    const response = await post('v1/chat/completions', question(pane), signal);
    if (!response.ok) throw new Error((await response.json()).error?.message ?? 'HTTP ' + response.status);
    for await (const event of events(response.body)) {
      for (const choice of event.choices) {
        content += choice.delta.content ?? '';
        plain.textContent = content;
        thought.append(choice.delta.reasoning_content ?? '');
        for (const told of choice.logprobs?.content ?? []) {
          tokens.append(tokenSpan(told, decoder));
          count++;
        }
        why = choice.finish_reason ?? why;
      }
    }
  } catch (error) {
    why = signal.aborted ? 'stopped' : error.message;
    end.classList.toggle('bad', !signal.aborted);
  }
  end.textContent = `${whole(count)} tokens, ${why || 'the stream broke off'}`;
  turn.dataset.ended = why;
  turns.push({role: 'assistant', content});
}

function setRunning(controller) {
  running = controller;
  $('send').hidden = running !== null;
  $('stop').hidden = running === null;
}

async function send() {
  const text = $('question').value.trim();
  if (running || !text || !panes[0].select.value) return;
  $('question').value = '';
  const controller = new AbortController();
  setRunning(controller);
  const asked = panes.filter((pane) => pane.select.value);
  await Promise.all(asked.map((pane) => {
    addTurn(pane, 'user', text);
    pane.turns.push({role: 'user', content: text});
    return answer(pane, controller.signal);
  }));
  if (running === controller) setRunning(null);
}

$('ask').addEventListener('submit', (event) => {
  event.preventDefault();
  send();
});
$('question').addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
$('stop').addEventListener('click', () => running?.abort());
$('clear').addEventListener('click', () => {
  forgetConversation();
  setRunning(null);
});
$('coloured').addEventListener('change', () => $('play').classList.toggle('coloured', $('coloured').checked));
for (const {select} of panes) select.addEventListener('change', forgetConversation);
$('forget').addEventListener('click', () => $('clear').click());
forgetConversation();
