// An event of the timeline: its selection, its description, its tooltip, and the list of the longest in view.
import {button, emptyText, terms} from './blocks.js';
import {h, name} from './dom.js';
import {layerCell} from './elements.js';
import {kernelName, kernelNames, kernelText} from './kernel.js';
import {columnsOf, sortTable} from './table.js';
import {eventsIn, laneOf, nameOf, requestDraw, shortNameOf, show} from './timeline_canvas.js';
import {duration} from './units.js';

// The line of the layer table of an event, if it has one, and its phase.
function lineOf({run}, event) {
  const of = run.timeline.of[event];
  return of < 0 ? {} : {line: run.lines[run.lineOf.get(of)], phase: run.rows.phase[of]};
}

function describe(view, event) {
  const {line, phase} = lineOf(view, event),
    layer = line && [layerCell(view.run, line.place), ` ${phase}`];
  return terms('dl.about', [
    ['Event', kernelName(kernelNames(view.run), nameOf(view, event))],
    ['Time', `${duration(view.length[event])}, from ${duration(view.start[event])}`],
    ['Lane', laneOf(view, event).name],
    ...(line ? [['Layer', layer]] : []),
  ]);
}

export function select(view, event, center = false) {
  const none = 'Click an event, or press n, to see its details.';
  view.selected = event;
  view.detail.replaceChildren(event < 0 ? emptyText(none) : describe(view, event));
  if (event >= 0 && center) {
    const middle = view.start[event] + view.length[event] / 2,
      half = (view.to - view.from) / 2;
    if (middle < view.from || middle > view.to) show(view, middle - half, middle + half);
  }
  requestDraw(view);
}

// What the tooltip says of an event: its name, time, lane, layer and phase.
export function tipOf(view, event) {
  const {line, phase} = lineOf(view, event),
    named = line && [line.title, line.module, phase].filter(Boolean).join(' ');
  return [
    name(shortNameOf(view, event)),
    h('strong', duration(view.length[event]) || '0'),
    ` from ${duration(view.start[event])} · ${laneOf(view, event).name}`,
    named && named !== nameOf(view, event) && name(named, 'name of'),
  ].filter(Boolean);
}

export function listLongest(view) {
  const events = longestIn(view);
  const link = (value, event) =>
    button(kernelText(kernelNames(view.run), value), () => select(view, event, true), {class: 'link'});
  const columns = columnsOf('events', events, {
    event: {value: event => nameOf(view, event), show: link},
    lane: {value: event => laneOf(view, event).name},
    start_ns: {value: event => view.start[event]},
    length_ns: {value: event => view.length[event]},
  });
  const table = events.length ? sortTable('Longest events', columns, events) : emptyText('No events in view.');
  view.longest.replaceChildren(table);
}

// The ten longest events in view.
function longestIn(view) {
  const longest = [];
  for (const row of view.rows) {
    for (const event of eventsIn(view, row, view.from, view.to)) {
      if (longest.length === 10 && view.length[event] <= view.length[longest[9]]) continue;
      longest.push(event);
      longest.sort((a, b) => view.length[b] - view.length[a]);
      longest.length = Math.min(longest.length, 10);
    }
  }
  return longest;
}
