// The timeline: ranges and GPU activities in lanes on a canvas.
import {remember} from './address.js';
import {colorKey, button, choice, emptyView, field, panel, wholeNames} from './blocks.js';
import {h, name} from './dom.js';
import {exportable} from './save.js';
import {phasesOf, prepared, requestDraw, pan, show, zoom} from './timeline_canvas.js';
import {listLongest, select} from './timeline_event.js';
import {timelineFile} from './timeline_file.js';
import {listen} from './timeline_input.js';
import {pick} from './timeline_interval.js';

const KEYS =
  'W and S, wheel, + and −: zoom. A and D, drag, ← and →: pan. 0: show all. Drag in the time axis or with Shift: ' +
  'select an interval. M: select the interval of the event, or what is in view. n and p: next and previous event. ' +
  '↑ and ↓: other rows. Enter: zoom to the event or the interval. Escape: clear.';

export function timelineView(run, state) {
  const nothing = 'Nothing to show: the profile contains neither timed ranges nor GPU activity.';
  if (!run.timeline.text.length) return emptyView('Timeline', nothing);
  const span = (state.span ??= {from: '', to: '', begin: '', end: '', marked: ''}),
    described = {'aria-roledescription': 'timeline', 'aria-label': 'Timeline', 'aria-describedby': 'timeline-keys'},
    canvas = h('canvas', {id: 'timeline', tabindex: '0', role: 'application', ...described}),
    tip = h('div.tip', {hidden: true}),
    detail = h('div.detail', {role: 'status', 'aria-live': 'polite'}),
    [longest, sums] = [h('div'), h('div')],
    names = h('div', detail, sums, panel('Longest events in view', longest));
  const settled = () => {
    listLongest(view);
    keepSpan(view);
  };
  const view = {
    ...prepared(run),
    ...{state, run, canvas, tip, detail, longest, sums, settled, selected: -1, interval: null, picking: false},
  };
  listen(view);
  select(view, -1);
  const buttons = [
    button('+', () => zoom(view, 0.5), {'aria-label': 'Zoom in'}),
    button('−', () => zoom(view, 2), {'aria-label': 'Zoom out'}),
    button('←', () => pan(view, -0.3), {'aria-label': 'Earlier'}),
    button('→', () => pan(view, 0.3), {'aria-label': 'Later'}),
    button('Fit', () => show(view, 0, view.end), {'aria-label': 'Fit all'}),
    pickButton(view),
    stepChoice(view),
    span.marked !== '' && run.lines[span.marked] && markedLayer(view),
  ];
  new ResizeObserver(() => requestDraw(view)).observe(canvas);
  queueMicrotask(() => showSpan(view, span)); // once the view is in the page, and before any key or drag changes it
  const keys = phasesOf(view).map(phase => colorKey(phase));
  return [
    h('h1', 'Timeline'),
    h('p.status', run.texts.timeline),
    h('div.filters', buttons),
    h('p.legend', keys),
    exportable(() => timelineFile(view), 'Timeline', h('div.lanes', canvas, tip)),
    h('p.hint', {id: 'timeline-keys'}, KEYS),
    h('div.names', wholeNames(names), names),
  ];
}

// Shows the interval of time, and selects the one, that the state has.
function showSpan(view, {from, to, begin, end}) {
  if (begin !== '' && end !== '') pick(view, [Number(begin), Number(end)], true);
  if (from !== '' && to !== '') show(view, Number(from), Number(to));
  else show(view, 0, view.end);
}

// Keeps the interval of time in view for the URL, unless all is in view.
function keepSpan(view) {
  if (!view.canvas.isConnected) return;
  const all = view.from <= 0 && view.to >= view.end,
    [from, to] = all ? ['', ''] : [Math.round(view.from), Math.round(view.to)].map(String);
  Object.assign(view.state.span, {from, to});
  remember();
}

// A switch between dragging to pan and dragging to select.
function pickButton(view) {
  const flip = event => {
    view.picking = !view.picking;
    event.target.setAttribute('aria-pressed', String(view.picking));
  };
  return button('Drag to select', flip, {'aria-pressed': 'false'});
}

function stepChoice(view) {
  const {steps, meta} = view.run,
    options = steps.step.slice(0, 1000).map((step, place) => [String(place), String(step)]);
  if (meta.host_ns === null || !options.length) return null;
  const go = place => {
    if (place === '') return show(view, 0, view.end);
    const [begin, long] = [steps.start_ns[place], steps.host_ns[place]];
    return show(view, begin - long * 0.02, begin + long * 1.02);
  };
  return field('Step', choice('step', [['', 'All'], ...options], '', go));
}

function markedLayer(view) {
  const line = view.run.lines[view.state.span.marked];
  view.marked = new Set(Object.values(line.rows));
  const clear = event => {
    view.marked = undefined;
    view.state.span.marked = '';
    remember();
    event.target.parentNode.remove();
    requestDraw(view);
  };
  return h('span.marked', 'Highlighted: ', name(line.title), ' ', button('Clear highlight', clear));
}
