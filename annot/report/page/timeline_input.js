// Input of the timeline: wheel, drag, pinch and keys.
import {actOnKey, placeTip} from './dom.js';
import {AXIS, eventAt, firstFrom, pan, ROW, SHORTEST, show, timeAt, zoom} from './timeline_canvas.js';
import {select, tipOf} from './timeline_event.js';
import {pick} from './timeline_interval.js';

// Elements that take keys themselves.
const INPUTS = 'input, select, textarea, button, a, canvas, [tabindex="0"]';

export function listen(view) {
  const {canvas} = view;
  const wheel = event => {
    event.preventDefault();
    const {deltaX, deltaY, shiftKey, clientX} = event,
      sideways = Math.abs(deltaX) > Math.abs(deltaY) ? deltaX : shiftKey ? deltaY : 0;
    if (sideways) pan(view, sideways / canvas.clientWidth);
    else zoom(view, Math.exp(Math.max(-1, Math.min(1, deltaY / 300))), timeAt(view, clientX));
  };
  canvas.addEventListener('wheel', wheel, {passive: false});
  listenPointers(view);
  canvas.addEventListener('keydown', event => keyPressed(view, event));
  const outside = event => {
    if (!canvas.isConnected) return removeEventListener('keydown', outside);
    if (/^[wasd]$/i.test(event.key) && !event.target.closest?.(INPUTS)) keyPressed(view, event);
  };
  addEventListener('keydown', outside);
}

function listenPointers(view) {
  const {canvas, tip} = view,
    held = new Map(); // position of each pointer that is down
  let moved = 0,
    anchor = null; // where the interval begins that the pointer selects
  const move = event => {
    if (!held.has(event.pointerId)) return hover(view, event);
    const before = held.get(event.pointerId),
      by = ((event.clientX - before) / canvas.clientWidth) * (view.to - view.from),
      other = [...held].find(([id]) => id !== event.pointerId)?.[1];
    moved += Math.abs(event.clientX - before);
    held.set(event.pointerId, event.clientX);
    tip.hidden = true;
    if (other !== undefined) {
      const factor = Math.max(1, Math.abs(before - other)) / Math.max(1, Math.abs(event.clientX - other));
      return zoom(view, factor, timeAt(view, (event.clientX + other) / 2));
    }
    if (anchor !== null) return pick(view, [anchor, timeAt(view, event.clientX)], false);
    return show(view, view.from - by, view.to - by);
  };
  const release = event => held.delete(event.pointerId);
  canvas.addEventListener('pointerdown', event => {
    held.set(event.pointerId, event.clientX);
    moved = 0;
    anchor = picks(view, event) ? timeAt(view, event.clientX) : null;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener('pointermove', move);
  canvas.addEventListener('pointerup', event => {
    release(event);
    if (moved < 4) select(view, eventAt(view, event));
    if (anchor !== null) pick(view, moved < 4 ? null : [anchor, timeAt(view, event.clientX)], true);
    anchor = null;
  });
  canvas.addEventListener('pointercancel', release);
  canvas.addEventListener('pointerleave', () => (tip.hidden = true));
}

// Whether a drag from here selects an interval.
function picks({canvas, picking}, event) {
  return picking || event.shiftKey || event.clientY - canvas.getBoundingClientRect().top < AXIS;
}

function hover(view, event) {
  const {tip, canvas} = view,
    pointed = eventAt(view, event),
    box = canvas.parentNode.getBoundingClientRect(),
    below = event.clientY - box.top + 16;
  view.pointed = timeAt(view, event.clientX);
  canvas.classList.toggle('picks', picks(view, event));
  tip.hidden = pointed < 0;
  if (pointed < 0) return;
  tip.replaceChildren(...tipOf(view, pointed));
  placeTip(tip, box, event.clientX, box.width - 4);
  tip.style.top = `${below + tip.offsetHeight > box.height ? Math.max(0, below - tip.offsetHeight - 26) : below}px`;
}

function keyPressed(view, event) {
  const at = view.canvas.matches(':hover') ? view.pointed : undefined; // zoom at the mouse, as other profilers do
  actOnKey(event, {
    w: () => zoom(view, 0.7, at),
    s: () => zoom(view, 1 / 0.7, at),
    a: () => pan(view, -0.15),
    d: () => pan(view, 0.15),
    m: () => pick(view, view.selected < 0 ? [view.from, view.to] : eventSpan(view), true),
    ArrowLeft: () => pan(view, -0.15),
    ArrowRight: () => pan(view, 0.15),
    '+': () => zoom(view, 0.5),
    '=': () => zoom(view, 0.5),
    '-': () => zoom(view, 2),
    0: () => show(view, 0, view.end),
    n: () => step(view, 1),
    p: () => step(view, -1),
    ...(view.selected < 0 ? {} : {ArrowUp: () => toRow(view, -1), ArrowDown: () => toRow(view, 1)}),
    Escape: () => {
      select(view, -1);
      pick(view, null, true);
    },
    Enter: () => zoomToSelection(view),
  });
}

function zoomToSelection(view) {
  if (view.selected < 0) return view.interval && show(view, ...view.interval);
  const from = view.start[view.selected],
    long = Math.max(view.length[view.selected], SHORTEST);
  return show(view, from - long * 0.1, from + long * 1.1);
}

function eventSpan(view) {
  const start = view.start[view.selected];
  return [start, start + view.length[view.selected]];
}

// Selects the event of the next or previous row that is active at the start of the selected event, or follows it.
function toRow(view, by) {
  const at = view.start[view.selected];
  let place = view.row[view.selected] + by;
  while (view.rows[place] && view.rows[place].from === view.rows[place].to) place += by;
  const row = view.rows[place];
  if (!row) return;
  select(view, Math.min(firstFrom(view, row, at), row.to - 1), true);
  const seen = view.canvas.getBoundingClientRect().top + row.top;
  if (seen < 80 || seen > innerHeight - ROW) scrollBy(0, seen - innerHeight / 2);
}

// Selects the next or previous event of the same row. Without a selection, selects the first event in view.
function step(view, by) {
  if (view.selected < 0) {
    const row = view.rows.find(one => firstFrom(view, one, view.from) < one.to);
    return row && select(view, firstFrom(view, row, view.from), true);
  }
  const row = view.rows[view.row[view.selected]];
  return select(view, Math.max(row.from, Math.min(row.to - 1, view.selected + by)), true);
}
