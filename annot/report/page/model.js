// The data of the page, and the values of lines and folds under the current filters.
import {count, known} from './units.js';

export const PHASES = ['forward', 'backward', 'recompute'];
export const INKS = [...PHASES, 'optimizer', 'data', 'other']; // phases with a color, from top to bottom of a box
export const NOTHING = {phase: '', module: '', search: '', steps: '', time: ''};

export async function readData() {
  const element = document.getElementById('data');
  if (element.getAttribute('type') === 'application/json') return JSON.parse(element.textContent);
  const bytes = Uint8Array.from(atob(element.textContent), char => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return JSON.parse(await new Response(stream).text());
}

// The rows of a table that is stored by column.
/** @returns {any[]} */
export function records(table) {
  const names = Object.keys(table).filter(key => Array.isArray(table[key])),
    length = names.length ? table[names[0]].length : 0;
  return Array.from({length}, (_, at) => Object.fromEntries(names.map(key => [key, table[key][at]])));
}

// Groups items by a key, in the order in which the keys appear.
export function grouped(items, key) {
  const groups = new Map();
  for (const item of items) {
    if (!groups.has(key(item))) groups.set(key(item), []);
    groups.get(key(item)).push(item);
  }
  return groups;
}

// The path and class of a line or fold, with the number of its layers.
export function fullName(line) {
  const size = line.members ? `×${count(line.members.length)}` : '';
  return [line.title, line.module, size].filter(Boolean).join(' ');
}

// What the times of a run are: of the GPU or of the host.
export function deviceOf(time) {
  return time.startsWith('gpu') ? 'GPU' : 'Host';
}

export function selfOf(time) {
  return time.replace('_ns', '_self_ns');
}

// The steps of a text such as 7 or 3:20, as [first, end) like a Python slice; null: all; undefined: invalid text.
export function stepRange(text, steps) {
  if (!text.trim()) return null;
  const match = /^\s*(?:(\d+)|(\d*):(\d*))\s*$/.exec(text);
  if (!match) return undefined;
  if (match[1]) return [Number(match[1]), Number(match[1]) + 1];
  return [Number(match[2] || 0), match[3] ? Number(match[3]) : steps];
}

export function phasesIn(run) {
  return [...new Set(run.lines.flatMap(line => Object.keys(line.rows)))];
}

export function modulesIn(run) {
  return [...new Set(run.lines.filter(line => !line.other && line.module).map(line => line.module))].sort();
}

// The phase that gives a color.
export function inkOf(phase) {
  return INKS.includes(phase) ? phase : 'other';
}

// The times of a line by phase, as pairs for a bar.
export function partsOf(numbers) {
  const phases = PHASES.filter(phase => numbers[phase]);
  return phases.length ? phases.map(phase => [phase, numbers[phase]]) : [[numbers.kind, numbers.total ?? 0]];
}

export function sumKnown(values) {
  const terms = values.filter(known);
  return terms.length ? terms.reduce((sum, value) => sum + value, 0) : null;
}

function sumParts(parts) {
  return sumKnown(Object.values(parts));
}

// The self times of all rows, of all steps or of some: an array per column. They are means if the page is per step.
function timesOf(run, text) {
  const range = stepRange(text, run.layer_steps.steps);
  if (!range) return run.rows;
  const table = run.layer_steps,
    names = ['host_self_ns', 'gpu_self_ns'].filter(key => table[key]),
    sums = Object.fromEntries(names.map(key => [key, new Float64Array(run.rows.layer.length)])),
    steps = run.meta.per_step ? Math.max(1, Math.min(range[1], table.steps) - range[0]) : 1;
  for (let cell = 0; cell < table.row.length; cell++) {
    if (table.step[cell] < range[0] || table.step[cell] >= range[1]) continue;
    for (const key of names) sums[key][table.row[cell]] += (table[key][cell] ?? 0) / steps;
  }
  return sums;
}

// The self times of each line by phase, and those with the lines inside: all lines add up to the outermost ones.
function timesOfLines(run, values, phase) {
  const own = run.lines.map(({rows}) => {
    const parts = {};
    for (const [key, row] of Object.entries(rows)) {
      if ((phase && key !== phase) || !known(values?.[row])) continue;
      parts[inkOf(key)] = (parts[inkOf(key)] ?? 0) + values[row];
    }
    return parts;
  });
  const whole = own.map(parts => ({...parts}));
  for (let place = whole.length - 1; place >= 0; place--) {
    const outer = whole[run.lines[place].parent] ?? {};
    for (const [key, ns] of Object.entries(whole[place])) outer[key] = (outer[key] ?? 0) + ns;
  }
  return {own, whole};
}

function sumOf({rows}, values, phase) {
  return sumKnown(Object.keys(rows).map(key => (!phase || key === phase ? values[rows[key]] : null)));
}

// The values of each line and fold under the filters: times by phase, and whether it matches. `parts` has the times by
// color, `own` those without the lines inside. The outermost lines add up to the whole.
export function measured(run, filters = NOTHING) {
  const time = filters.time || run.time,
    times = timesOf(run, filters.steps),
    some = filters.steps.trim() !== '',
    {own, whole: parts} = timesOfLines(run, times[selfOf(time)], filters.phase),
    host = timesOfLines(run, times.host_self_ns, filters.phase).whole;
  const calls = line => sumOf(line, run.rows.calls, filters.phase); // of lines without a forward
  const numbers = run.lines.map((line, place) => ({
    total: sumParts(parts[place]),
    self: sumParts(own[place]),
    host: sumParts(host[place]),
    calls: some ? null : sumOf(line, run.rows.calls, filters.phase || 'forward') || calls(line),
    kernels: some ? null : sumOf(line, run.rows.kernels, filters.phase),
  }));
  for (const fold of run.folds) {
    for (const table of [parts, own, numbers]) table.push(sumsOf(fold.members.map(place => table[place])));
    Object.assign(numbers.at(-1), spreadOf(fold, numbers));
  }
  for (const [place, line] of run.places.entries()) {
    const {forward = null, backward = null, recompute = null} = parts[place],
      kind = inkOf(Object.keys(run.lines[line.members?.[0] ?? place].rows)[0]),
      found = matches(run, line, filters) && !(some && !numbers[place].total);
    Object.assign(numbers[place], {forward, backward, recompute, kind, matches: found});
  }
  let whole = 0;
  for (const value of times[selfOf(time)]) whole += value ?? 0;
  // Without a GPU, 100 % is at least the wall-clock time of the processes, as in the verdict.
  if (run.time === 'host_ns' && !some) whole = run.meta.whole_ns ?? whole;
  return {numbers, whole, time, own, parts};
}

// The sums of records by key.
function sumsOf(rows) {
  const keys = [...new Set(rows.flatMap(row => Object.keys(row)))];
  return Object.fromEntries(keys.map(key => [key, sumKnown(rows.map(row => row[key]))]));
}

// How the times of the layers in a fold differ: median, slowest with its index, and interquartile range.
export function spreadOf({members, indices}, numbers, key = 'total') {
  const times = members.map((place, at) => [numbers[place][key], at]).filter(([ns]) => known(ns));
  if (times.length < 2) return {};
  times.sort((a, b) => a[0] - b[0] || b[1] - a[1]);
  const quantile = part => {
    const place = (times.length - 1) * part,
      [below, above] = [Math.floor(place), Math.ceil(place)].map(at => times[at][0]);
    return below + (place % 1) * (above - below);
  };
  const [slowest, at] = times.at(-1);
  return {median: quantile(0.5), slowest, index: indices[at], iqr: quantile(0.75) - quantile(0.25)};
}

function matches(run, line, {phase, module, search}) {
  const lines = line.members?.map(member => run.lines[member]) ?? [line];
  return (
    (!phase || lines.some(({rows}) => phase in rows)) &&
    (!module || line.module === module) &&
    `${line.title} ${line.module}`.toLowerCase().includes(search.trim().toLowerCase())
  );
}
