// An interval of the timeline: its sums by phase, layer and kernel, and how long the GPU is busy and idle in it.
import {remember} from './address.js';
import {colorKey, button, hint, pairs, panel} from './blocks.js';
import {announce, h} from './dom.js';
import {layerCell} from './elements.js';
import {kernelName, kernelNames} from './kernel.js';
import {grouped, records} from './model.js';
import {sortTable} from './table.js';
import {firstFrom, requestDraw, show} from './timeline_canvas.js';
import {count, duration, instant, plural, share} from './units.js';

// Selects an interval in ns, or none. `done`: the reader has released it.
export function pick(view, interval, done) {
  view.interval = interval && [Math.max(0, Math.min(...interval)), Math.min(view.end, Math.max(...interval))];
  if (view.interval && view.interval[1] <= view.interval[0]) view.interval = null;
  requestDraw(view);
  if (!done) return;
  const [begin, end] = view.interval?.map(at => String(Math.round(at))) ?? ['', ''];
  Object.assign(view.state.span, {begin, end});
  remember();
  view.sums.replaceChildren(...(view.interval ? [intervalPanel(view)] : []));
  if (view.interval) announce(`Interval of ${instant(Number(end) - Number(begin))}`);
}

// The events of a row that lie in an interval, with their begin and time in it.
function* clipped(view, row, [begin, end]) {
  for (let event = firstFrom(view, row, begin); event < row.to && view.start[event] < end; event++) {
    const from = Math.max(begin, view.start[event]),
      ns = Math.min(end, view.start[event] + view.length[event]) - from;
    if (ns > 0) yield {event, from, ns};
  }
}

// The part of each cell that lies in an interval. Cells have the sums of the events that the page lacks.
function cellsIn({run}, [begin, end]) {
  const bounds = run.timeline.cells?.bounds ?? [];
  return bounds.slice(1).map((to, cell) => {
    const inside = Math.min(end, to) - Math.max(begin, bounds[cell]);
    return inside > 0 ? inside / (to - bounds[cell]) : 0;
  });
}

// The busy time of each device: the time in which at least one of its streams works.
function busyOf(view, interval, shares) {
  const deviceOf = row => view.lanes[row.lane].device,
    rows = grouped(view.rows.filter(deviceOf), deviceOf),
    lacking = shares.length ? records(view.run.timeline.cells.busy) : [];
  return [...rows].map(([device, rowsOfDevice]) => {
    const times = rowsOfDevice.flatMap(row => [...clipped(view, row, interval)]);
    let busy = 0,
      until = -Infinity;
    for (const {cell, lane, length_ns} of lacking)
      if (view.lanes[lane].device === device) busy += length_ns * shares[cell];
    for (const {from, ns} of times.sort((a, b) => a.from - b.from)) {
      busy += Math.max(0, from + ns - Math.max(from, until));
      until = Math.max(until, from + ns);
    }
    return {device, busy};
  });
}

// The activities of the GPUs in an interval, with their time in it.
function workIn(view, interval) {
  return view.rows.filter(row => view.lanes[row.lane].device).flatMap(row => [...clipped(view, row, interval)]);
}

// The ranges of the host in an interval, with the time of each outside the ranges in it.
function rangesIn(view, interval) {
  const ranges = new Map();
  view.rows.forEach((row, place) => {
    if (!['thread', 'layers'].includes(view.lanes[row.lane].kind)) return;
    for (const range of clipped(view, row, interval)) {
      ranges.set(range.event, range);
      const outer = ranges.get(outerOf(view, range.event, place));
      if (outer) outer.ns -= range.ns;
    }
  });
  return [...ranges.values()];
}

// The innermost event above an event of the same lane that contains it; -1: none.
function outerOf(view, event, place) {
  const end = view.start[event] + view.length[event];
  for (let up = place - 1; view.rows[up]?.lane === view.rows[place].lane; up--) {
    const outer = firstFrom(view, view.rows[up], end);
    if (outer < view.rows[up].to && view.start[outer] <= view.start[event]) return outer;
  }
  return -1;
}

// The sums of the events that the page lacks, and how far they may be off: the ends of the interval cut cells.
function lackingIn({run}, shares) {
  let off = 0;
  const sums = records(run.timeline.cells?.sums ?? {}).filter(({cell}) => shares[cell]);
  const parts = sums.map(({cell, of, text, calls, length_ns}) => {
    const part = shares[cell];
    if (part < 1) off += Math.abs(length_ns) * Math.max(part, 1 - part);
    return {of, text, phase: of < 0 ? 'other' : run.rows.phase[of], calls: calls * part, ns: length_ns * part};
  });
  return {parts, off};
}

// Sums of times by a key, longest first.
function sumsBy(parts, key) {
  const sums = [...grouped(parts, part => part[key]).values()].map(some => ({
    ...some[0],
    calls: some.reduce((sum, {calls}) => sum + calls, 0),
    ns: some.reduce((sum, {ns}) => sum + ns, 0),
  }));
  return sums.filter(({ns}) => ns >= 0.5).sort((a, b) => b.ns - a.ns);
}

function intervalPanel(view) {
  const {interval, run} = view,
    {of, text, left_out} = run.timeline,
    shares = cellsIn(view, interval),
    devices = busyOf(view, interval, shares),
    events = devices.length ? workIn(view, interval) : rangesIn(view, interval),
    lacking = lackingIn(view, shares);
  const parts = [
    ...events.map(({event, ns}) => ({of: of[event], text: text[event], phase: view.phase[event], calls: 1, ns})),
    ...lacking.parts,
  ];
  const whole = sumsBy(parts, 'of').reduce((sum, {ns}) => sum + ns, 0);
  const clear = () => {
    pick(view, null, true);
    view.canvas.focus();
  };
  const buttons = [button('Zoom to the interval', () => show(view, ...interval)), button('Clear the interval', clear)];
  const tables = [
    layerSums(run, parts, whole, devices.length > 0),
    devices.length > 0 && kernelSums(run, parts, whole),
  ];
  const inexact =
    `Times are correct to ±${instant(Math.max(1, lacking.off))}: both ends of the interval are inside cells of time, ` +
    'for which the page has only the sums of short events.';
  return panel(
    `Interval from ${instant(interval[0])} to ${instant(interval[1])}`,
    totals(interval[1] - interval[0], devices, parts, whole),
    lacking.off >= 0.5 && hint(inexact),
    left_out > 0 && hint(`The sums exclude ${plural(left_out, 'lane')} that the page does not contain.`),
    h('p.filters', buttons),
    h('div', {class: devices.length ? 'columns' : ''}, tables),
  );
}

function totals(long, devices, parts, whole) {
  const calls = parts.reduce((sum, part) => sum + part.calls, 0);
  return pairs([
    ['Length', instant(long)],
    ...devices.flatMap(({device, busy}) => [
      [`${device} busy`, instant(busy), share(busy, long)],
      [`${device} idle`, instant(long - busy) || '0', share(long - busy, long)],
    ]),
    [devices.length ? 'Kernels and copies' : 'Ranges', count(Math.round(calls))],
    ...sumsBy(parts, 'phase').map(({phase, ns}) => [colorKey(phase), instant(ns), share(ns, whole)]),
  ]);
}

function layerSums(run, parts, whole, device) {
  const lineOf = ({of}) => run.lines[run.lineOf.get(of)],
    show = (text, sum) => (lineOf(sum) ? layerCell(run, lineOf(sum).place) : text);
  const layer = {title: 'Layer', text: true, value: sum => lineOf(sum)?.title ?? '(other)', show},
    phase = {title: 'Phase', text: true, value: ({of}) => (of < 0 ? '' : run.rows.phase[of])},
    caption = device ? 'GPU time by layer and phase' : 'Host time by layer and phase, child layers excluded';
  return sumTable(caption, [layer, phase], sumsBy(parts, 'of'), whole);
}

function kernelSums(run, parts, whole) {
  const names = kernelNames(run),
    value = ({text}) => run.timeline.texts[text],
    kernel = {title: 'Kernel', text: true, value, show: text => kernelName(names, text)};
  return sumTable('Kernels in the interval', [kernel], sumsBy(parts, 'text'), whole);
}

function sumTable(caption, columns, sums, whole) {
  const numbers = [
    {title: 'Time', value: ({ns}) => Math.round(ns), show: duration},
    {title: 'Share', value: ({ns}) => ns, show: value => share(value, whole)},
    {title: 'Count', class: 'minor', value: ({calls}) => Math.round(calls), show: count},
  ];
  return h('div.sums', h('h3', caption), sortTable(caption, [...columns, ...numbers], sums, {shown: 15}));
}
