// One layer: times, work, counters, shapes, kernels, steps and advice. `fold.js` shows repeated layers with the same parts.
import {adviceList} from './advice.js';
import {colorKey, bar, emptyText, emptyView, hint, list, panel, wholeNames} from './blocks.js';
import {h, name} from './dom.js';
import {stackedBars} from './drawing.js';
import {crumbs, layerCell, perStep} from './elements.js';
import {kernelName, kernelNames} from './kernel.js';
import {inkOf, measured, partsOf, records, selfOf} from './model.js';
import {lineAt, membersOf, placesInside, subtree} from './places.js';
import {barColumn, COLUMNS, columnsOf, factTable, LISTED, shown, sortTable, titleOf} from './table.js';
import {duration, inUnit, instant, known, share, unitFor} from './units.js';

export function layerView(run, place) {
  const line = run.lines[place];
  if (!line) return emptyView('Layer', 'This profile does not contain the layer.');
  const counters = valuesOf(run, line, COLUMNS.counters),
    link = [' · ', h('a', {href: `#timeline?marked=${place}`}, 'Show in the timeline')],
    timeline = run.timeline.text.length > 0 && link;
  return [
    crumbs(run, line),
    h('h1', name(line.title), ' ', name(line.module, 'module')),
    sourceOf(run, line),
    perStep(run),
    h(
      'div.columns',
      panel('Times and work', layerFacts(run, line, 'Times and work', COLUMNS.facts)),
      h(
        'div',
        panel('Share of the run', layerShare(run, line), shapesOf(run, line)),
        childrenOf(run, place),
        layerAdvice(run, line),
      ),
    ),
    counters.length > 0 && panel('Hardware counters', layerFacts(run, line, 'Hardware counters', COLUMNS.counters)),
    kernelsOf(run, place),
    layerSteps(run, line),
    h('p', h('a', {href: `#icicle/${place}`}, 'Show in the icicle'), timeline),
  ];
}

// Where the class of a module is defined.
function sourceOf(run, line) {
  const source = Object.values(line.rows)
    .map(row => run.rows.source?.[row])
    .find(Boolean);
  return source && hint(`${line.module} is defined in `, h('code', source));
}

// The columns of which a line has values in any phase.
function valuesOf(run, line, columns) {
  const rows = Object.values(line.rows);
  return columns.filter(({name: key}) => run.rows[key] && rows.some(row => known(run.rows[key][row])));
}

function layerFacts(run, line, caption, columns) {
  const rows = Object.values(line.rows),
    used = ({name: key}) => rows.some(row => !['', 0, null, undefined].includes(run.rows[key][row]));
  const heads = Object.keys(line.rows).map(phase => colorKey(phase));
  const lines = valuesOf(run, line, columns)
    .filter(used)
    .map(column => [column.full || column.title, rows.map(row => shown(column, run.rows[column.name][row]))]);
  return factTable(caption, heads, lines);
}

function layerShare(run, line) {
  const whole = run.meta[run.time];
  const shares = Object.entries(line.rows).flatMap(([phase, row]) => {
    const ns = run.rows[run.time][row];
    if (!known(ns)) return [];
    const value = h('span.value', `${duration(ns)}, ${share(ns, whole)}`);
    return [[h('span.what', phase), bar([[inkOf(phase), ns]], whole || 1), value]];
  });
  return list('ul.shares', shares);
}

function shapesOf(run, line) {
  const shapes = Object.values(line.rows)
    .map(row => run.rows.shapes[row])
    .find(some => some.length);
  const names = shapes?.map(shape => name(shape));
  return names && [h('h3', 'Input shapes, most frequent first'), list('ol.shapes', names)];
}

// The kernels of a layer, with those of its child layers added.
export function kernelsOf(run, place) {
  if (!run.names.rows.row.length) return null;
  const kernels = sumsOfKernels(run, place);
  if (!kernels.length) return panel('Kernels', emptyText('No GPU activity belongs to this layer.'));
  const names = kernelNames(run),
    unit = unitFor(kernels.map(({gpu_ns}) => gpu_ns)),
    timed = value => inUnit(unit, value || null);
  const columns = [
    {title: 'Name', text: true, value: kernel => kernel.name, show: value => kernelName(names, value)},
    ...columnsOf('layer_kernels', kernels, {
      gpu_ns: {title: `${titleOf('layer_kernels', 'gpu_ns')} ${unit.name}`, show: timed},
      gpu_self_ns: {show: timed},
      mean_ns: {value: ({gpu_ns, calls}) => gpu_ns / calls, show: instant},
    }),
  ];
  const table = sortTable('Kernels of the layer', columns, kernels, {by: 'gpu_ns'});
  return panel('Kernels, child layers included', wholeNames(table), table);
}

function sumsOfKernels(run, place) {
  const rows = new Map(),
    sums = new Map();
  for (const outer of membersOf(run, place))
    for (const inner of subtree(run, outer))
      for (const [phase, row] of Object.entries(run.lines[inner].rows)) rows.set(row, [phase, inner === outer]);
  for (const {row, name: code, calls, gpu_ns, kind, tensor_cores} of records(run.names.rows)) {
    if (!rows.has(row)) continue;
    const [phase, own] = rows.get(row),
      key = `${phase} ${code}`,
      zero = {calls: 0, gpu_ns: 0, gpu_self_ns: 0};
    if (!sums.has(key)) sums.set(key, {phase, name: run.names.texts[code], kind, tensor_cores, ...zero});
    const sum = sums.get(key);
    sum.calls += calls;
    sum.gpu_ns += gpu_ns;
    if (own) sum.gpu_self_ns += gpu_ns;
  }
  return [...sums.values()];
}

// The time of a line or fold in each step, as bars. With many steps, a bar is the longest of neighbors.
export function layerSteps(run, line) {
  const table = run.layer_steps,
    first = table.step[0] ?? 0;
  if (table.kept < 2) return null;
  const phases = phasesInSteps(run, line).filter(([, times]) => times.some(Boolean));
  if (!phases.length) return null;
  const totals = Array.from({length: table.kept}, (_, step) => phases.reduce((ns, [, times]) => ns + times[step], 0)),
    order = totals.map((_, step) => step).sort((a, b) => totals[b] - totals[a]),
    every = Math.ceil(table.kept / 300),
    at = step => `${duration(totals[step])} (step ${first + step})`;
  const bars = Array.from({length: Math.ceil(table.kept / every)}, (_, number) => {
    const step = order.find(longest => Math.floor(longest / every) === number),
      tip = (phase, ns) => `Step ${first + step}: ${phase} ${duration(ns)} of ${duration(totals[step])}`;
    return {parts: phases.map(([phase, times]) => [phase, times[step], tip(phase, times[step])])};
  });
  const [median, longest, shortest] = [order[order.length >> 1], order[0], order.at(-1)];
  const status = `Median ${duration(totals[median])}, longest ${at(longest)}, shortest ${at(shortest)}.`,
    note = every > 1 && ` A bar is the longest of ${every} steps.`,
    picture = stackedBars(`Time of ${line.title} in each step`, bars);
  return panel('Time in each step', h('p.status', status, note), picture);
}

// The times of a line or fold in each step, by phase.
/** @returns {[string, Float64Array][]} */
function phasesInSteps(run, line) {
  const table = run.layer_steps,
    times = table[selfOf(run.time)],
    inside = membersOf(run, line.place).flatMap(place => subtree(run, place)),
    phases = new Map(),
    phaseOf = new Map();
  for (const place of inside)
    for (const [phase, row] of Object.entries(run.lines[place].rows)) {
      phaseOf.set(row, phase);
      phases.set(phase, new Float64Array(table.kept));
    }
  for (let at = 0; at < table.row.length; at++) {
    const phase = phases.get(phaseOf.get(table.row[at]));
    if (phase) phase[table.step[at] - table.step[0]] += times[at];
  }
  return [...phases];
}

export function childrenOf(run, place) {
  const children = placesInside(run, place);
  if (!children.length) return null;
  const label = child => lineAt(run, child).label;
  return panel('Child layers', timesTable(run, 'Child layers', children, measured(run).numbers, label));
}

// Layers and folds with their times.
export function timesTable(run, caption, places, numbers, label) {
  const total = place => numbers[place].total;
  const columns = [
    {title: 'Layer', text: true, value: label, show: (value, place) => layerCell(run, place, value)},
    {title: 'Time', value: total, show: duration},
    barColumn('Forward and backward', total, place => partsOf(numbers[place]), places, 'bars'),
  ];
  return sortTable(caption, columns, places, {shown: LISTED});
}

function layerAdvice(run, line) {
  const advice = records(run.advice).filter(({layers}) => layers.includes(line.title));
  return advice.length > 0 && panel('Advice', adviceList(run, advice));
}
