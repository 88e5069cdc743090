// What the timeline shows of its lanes, and how it draws them on a canvas or an `SvgPaper`.
import {printable} from './dom.js';
import {kernelNames} from './kernel.js';
import {INKS, inkOf} from './model.js';
import {fixed, instant, plural, unitFor} from './units.js';

export const ROW = 17; // sizes in pixels
export const AXIS = 24;
export const SHORTEST = 20; // closest zoom in ns
const HEAD = 20;

// The positions of lanes and rows, and the index of the first event of each row in the arrays.
export function prepared({timeline, rows: layerRows}) {
  const size = timeline.text.length,
    start = Float64Array.from(timeline.start_ns),
    length = Float64Array.from(timeline.length_ns),
    row = new Int32Array(size),
    phase = new Array(size),
    lanes = [],
    rows = [],
    firstRow = [];
  let [top, end] = [AXIS, 1];
  for (const lane of timeline.lanes) {
    firstRow.push(rows.length);
    for (let at = 0; at < lane.rows; at++) rows.push({lane: lanes.length, top: top + HEAD + at * ROW, from: 0, to: 0});
    lanes.push({...lane, top});
    top += HEAD + lane.rows * ROW + 4;
  }
  for (let event = 0; event < size; event++) {
    row[event] = firstRow[timeline.lane[event]] + timeline.row[event];
    const place = rows[row[event]];
    if (!place.to) place.from = event;
    place.to = event + 1;
    end = Math.max(end, start[event] + length[event]);
    phase[event] = timeline.of[event] < 0 ? 'other' : layerRows.phase[timeline.of[event]];
  }
  return {start, length, row, phase, phases: new Set(phase), rows, lanes, end, height: top + 4, from: 0, to: end};
}

export function phasesOf(view) {
  return INKS.filter(phase => view.phases.has(phase));
}

export function show(view, from, to) {
  const wide = Math.min(Math.max(to - from, SHORTEST), view.end * 1.04),
    least = -view.end * 0.02,
    begin = Math.min(Math.max((from + to - wide) / 2, least), view.end * 1.02 - wide);
  view.from = begin;
  view.to = begin + wide;
  requestDraw(view);
}

export function zoom(view, factor, at = (view.from + view.to) / 2) {
  show(view, at - (at - view.from) * factor, at + (view.to - at) * factor);
}

export function pan(view, part) {
  const by = (view.to - view.from) * part;
  show(view, view.from + by, view.to + by);
}

// The time at a position in the window.
export function timeAt({canvas, from, to}, x) {
  return from + ((x - canvas.getBoundingClientRect().left) / canvas.clientWidth) * (to - from);
}

// The first event of a row that ends at or after a time, by binary search: events of a row do not overlap.
export function firstFrom(view, row, at) {
  let low = row.from,
    high = row.to;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (view.start[middle] + view.length[middle] < at) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The events of a row that touch an interval, in order.
export function* eventsIn(view, row, from, to) {
  for (let event = firstFrom(view, row, from); event < row.to && view.start[event] <= to; event++) yield event;
}

// The event at the position of the pointer; -1: none.
export function eventAt(view, {clientX, clientY}) {
  const y = clientY - view.canvas.getBoundingClientRect().top,
    row = view.rows.find(({top}) => y >= top && y < top + ROW);
  if (!row) return -1;
  const scale = (view.to - view.from) / view.canvas.clientWidth,
    at = timeAt(view, clientX);
  for (const event of eventsIn(view, row, at - scale * 2, at + scale))
    if (at <= view.start[event] + Math.max(view.length[event], scale * 2)) return event;
  return -1;
}

export function laneOf(view, event) {
  return view.lanes[view.rows[view.row[event]].lane];
}

export function nameOf({run: {timeline}}, event) {
  return timeline.texts[timeline.text[event]];
}

// The short name of a kernel; other events have one name.
export function shortNameOf(view, event) {
  const text = nameOf(view, event);
  return kernelNames(view.run).get(text)?.short ?? text;
}

export function timelineSpan({from, to, end}) {
  return `${instant(Math.max(0, from)) || '0'} to ${instant(Math.min(to, end))} of ${instant(end)}`;
}

// Draws in the next frame.
export function requestDraw(view) {
  if (view.drawRequested) return;
  view.drawRequested = true;
  requestAnimationFrame(() => {
    view.drawRequested = false;
    if (view.canvas.isConnected) draw(view);
  });
}

function draw(view) {
  const begun = performance.now(),
    {canvas} = view,
    ratio = Math.min(devicePixelRatio || 1, 2),
    width = canvas.clientWidth,
    pixels = [Math.round(width * ratio), Math.round(view.height * ratio)];
  canvas.style.height = `${view.height}px`;
  if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) [canvas.width, canvas.height] = pixels;
  const paper = canvas.getContext('2d');
  paper.setTransform(ratio, 0, 0, ratio, 0, 0);
  paper.clearRect(0, 0, width, view.height);
  const drawn = paint(view, paper, width);
  Object.assign(canvas.dataset, {from: view.from, to: view.to, drawn, ms: (performance.now() - begun).toFixed(2)});
  canvas.setAttribute('aria-label', `Timeline, ${timelineSpan(view)}`);
  clearTimeout(view.timer);
  view.timer = setTimeout(view.settled, 120);
}

// Draws what is in view, and returns the number of events.
export function paint(view, paper, width) {
  const color = colors();
  paper.font = '11px system-ui, sans-serif';
  paper.textBaseline = 'middle';
  paper.textAlign = 'left';
  drawAxis(view, paper, color, width);
  let drawn = 0;
  for (const row of view.rows) drawn += drawRow(view, paper, color, width, row);
  drawLanes(view, paper, color);
  if (view.interval) drawInterval(view, paper, color, width);
  return drawn;
}

function colors() {
  const style = getComputedStyle(document.documentElement),
    keys = ['text', 'muted', 'line', 'surface', 'accent', 'faint', 'on-fill', ...INKS, ...INKS.map(ink => `on-${ink}`)];
  return Object.fromEntries(keys.map(key => [key, style.getPropertyValue(`--${key}`).trim()]));
}

function drawAxis(view, paper, color, width) {
  const wide = view.to - view.from,
    raw = wide / Math.max(2, Math.floor(width / 130)),
    power = 10 ** Math.floor(Math.log10(raw)),
    step = [1, 2, 5, 10].find(factor => factor * power >= raw) * power,
    unit = unitFor([Math.max(Math.abs(view.to), 1)]),
    decimals = Math.min(9, Math.max(0, Math.ceil(-Math.log10(step / unit.ns) - 1e-9)));
  for (let mark = Math.ceil(view.from / step) * step; mark <= view.to; mark += step) {
    const x = ((mark - view.from) / wide) * width;
    paper.fillStyle = color.line;
    paper.fillRect(x, 0, 1, view.height);
    paper.fillStyle = color.muted;
    paper.fillText(`${fixed(mark / unit.ns, decimals)} ${unit.name}`, x + 4, AXIS / 2 - 2);
  }
}

function drawLanes(view, paper, color) {
  for (const lane of view.lanes) {
    const text = `${lane.name} · ${plural(lane.total, 'event')}`;
    paper.fillStyle = color.surface;
    paper.fillRect(2, lane.top + 2, paper.measureText(text).width + 8, HEAD - 4);
    paper.fillStyle = color.muted;
    paper.fillText(text, 6, lane.top + HEAD / 2);
  }
}

function drawRow(view, paper, color, width, row) {
  const scale = width / (view.to - view.from);
  let last = -1,
    drawn = 0;
  for (const event of eventsIn(view, row, view.from, view.to)) {
    const left = (view.start[event] - view.from) * scale,
      right = Math.max(left + view.length[event] * scale, left + 1);
    if (right <= last) continue; // the pixel is already covered
    const x = Math.max(left, last, 0),
      wide = Math.min(right, width) - x;
    last = wide < 1 ? Math.ceil(right) : right;
    drawn++;
    const dim = view.marked && !view.marked.has(view.run.timeline.of[event]),
      ink = inkOf(view.phase[event]);
    paper.fillStyle = dim ? color.faint : color[ink];
    paper.fillRect(x, row.top, Math.max(wide - (wide > 3 ? 1 : 0), 0.7), ROW - 2);
    if (event === view.selected) {
      paper.strokeStyle = color.text;
      paper.lineWidth = 2;
      paper.strokeRect(x + 1, row.top + 1, Math.max(wide - 2, 1), ROW - 4);
    }
    if (wide > 34) write(view, paper, dim ? color.muted : color[`on-${ink}`], event, x, wide, row.top);
  }
  return drawn;
}

function write(view, paper, color, event, x, wide, top) {
  const text = printable(shortNameOf(view, event).slice(0, 200)),
    fits = Math.floor((wide - 8) / 6),
    cut = text.length > fits ? `${text.slice(0, Math.max(1, fits - 1))}…` : text;
  paper.fillStyle = color;
  paper.fillText(cut, x + 4, top + ROW / 2 - 1, wide - 6);
}

// Draws the interval over the lanes, with its length in the axis.
function drawInterval({interval, from, to, height}, paper, color, width) {
  const [left, right] = interval.map(at => ((at - from) / (to - from)) * width),
    text = instant(interval[1] - interval[0]),
    wide = paper.measureText(text).width + 10,
    at = Math.max(0, Math.min((left + right - wide) / 2, width - wide));
  paper.fillStyle = color.accent;
  paper.globalAlpha = 0.14;
  paper.fillRect(left, 0, right - left, height);
  paper.globalAlpha = 1;
  for (const x of [left, right]) paper.fillRect(x - 0.75, 0, 1.5, height);
  paper.fillRect(at, 1, wide, AXIS - 8);
  paper.fillStyle = color['on-fill'];
  paper.fillText(text, at + 5, AXIS / 2 - 3);
}
