// Input of the timeline: wheel, drag, pinch and keys.

// Elements that take keys themselves.
const INPUTS = 'input, select, textarea, button, a, canvas, [tabindex="0"]';

function listen(view) {
  const {canvas} = view,
    at = event =>
      view.from + ((event.clientX - canvas.getBoundingClientRect().left) / canvas.clientWidth) * (view.to - view.from);
  canvas.addEventListener(
    'wheel',
    event => {
      event.preventDefault();
      const sideways =
        Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : event.shiftKey ? event.deltaY : 0;
      if (sideways) pan(view, sideways / canvas.clientWidth);
      else zoom(view, Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))), at(event));
    },
    {passive: false},
  );
  listenPointers(view, at);
  canvas.addEventListener('keydown', event => keyPressed(view, event));
  const outside = event => {
    if (!canvas.isConnected) return removeEventListener('keydown', outside);
    if (/^[wasd]$/i.test(event.key) && !event.target.closest?.(INPUTS)) keyPressed(view, event);
  };
  addEventListener('keydown', outside);
}

function listenPointers(view, at) {
  const {canvas, tip} = view,
    held = new Map();
  let moved = 0,
    anchor = null; // where the interval begins that the pointer selects
  canvas.addEventListener('pointerdown', event => {
    held.set(event.pointerId, event.clientX);
    moved = 0;
    const inAxis = event.clientY - canvas.getBoundingClientRect().top < AXIS;
    anchor = view.picking || event.shiftKey || inAxis ? at(event) : null;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener('pointermove', event => {
    if (!held.has(event.pointerId)) return hover(view, event);
    const before = held.get(event.pointerId),
      scale = (view.to - view.from) / canvas.clientWidth;
    const other = [...held].find(([id]) => id !== event.pointerId)?.[1];
    moved += Math.abs(event.clientX - before);
    held.set(event.pointerId, event.clientX);
    tip.hidden = true;
    if (other === undefined && anchor !== null) return pick(view, [anchor, at(event)], false);
    if (other === undefined)
      return show(view, view.from - (event.clientX - before) * scale, view.to - (event.clientX - before) * scale);
    return zoom(
      view,
      Math.max(1, Math.abs(before - other)) / Math.max(1, Math.abs(event.clientX - other)),
      at({clientX: (event.clientX + other) / 2}),
    );
  });
  const release = event => {
    held.delete(event.pointerId);
  };
  canvas.addEventListener('pointerup', event => {
    release(event);
    if (moved < 4) select(view, eventAt(view, event));
    if (anchor !== null) pick(view, moved < 4 ? null : [anchor, at(event)], true);
    anchor = null;
  });
  canvas.addEventListener('pointercancel', release);
  canvas.addEventListener('pointerleave', () => {
    tip.hidden = true;
  });
}

function hover(view, event) {
  const found = eventAt(view, event),
    {tip, canvas} = view,
    box = canvas.parentNode.getBoundingClientRect();
  view.pointed = view.from + ((event.clientX - canvas.getBoundingClientRect().left) / canvas.clientWidth) * (view.to - view.from);
  canvas.classList.toggle('picks', view.picking || event.shiftKey || event.clientY - box.top < AXIS);
  tip.hidden = found < 0;
  if (found < 0) return;
  tip.replaceChildren(...tipOf(view, found));
  const below = event.clientY - box.top + 16;
  tip.style.left = `${Math.max(0, Math.min(event.clientX - box.left + 12, box.width - tip.offsetWidth - 4))}px`;
  tip.style.top = `${below + tip.offsetHeight > box.height ? Math.max(0, below - tip.offsetHeight - 26) : below}px`;
}

// What the tooltip says of an event: its name, time, lane, layer and phase.
function tipOf(view, event) {
  const {run} = view,
    of = run.timeline.of[event],
    line = of < 0 ? undefined : run.lines[run.lineOf.get(of)];
  const named = line && [title(line), line.module, run.rows.phase[of]].filter(Boolean).join(' ');
  return [
    name(shortNameOf(view, event)),
    h('strong', {}, duration(view.length[event]) || '0'),
    ` from ${duration(view.start[event])} · ${view.lanes[view.rows[view.row[event]].lane].name}`,
    named && named !== nameOf(view, event) && name(named, 'name of'),
  ].filter(Boolean);
}

function keyPressed(view, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const at = view.canvas.matches(':hover') ? view.pointed : undefined; // zoom at the mouse, as other profilers do
  const act = {
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
    Enter: () => {
      if (view.selected >= 0) {
        const from = view.start[view.selected],
          long = Math.max(view.length[view.selected], SHORTEST);
        show(view, from - long * 0.1, from + long * 1.1);
      } else if (view.interval) show(view, ...view.interval);
    },
  }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!act) return;
  event.preventDefault();
  act();
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
