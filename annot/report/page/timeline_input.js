// Input of the timeline: wheel, drag, pinch and keys.

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
}

function listenPointers(view, at) {
  const {canvas, tip} = view,
    held = new Map();
  let moved = 0;
  canvas.addEventListener('pointerdown', event => {
    held.set(event.pointerId, event.clientX);
    moved = 0;
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
  });
  canvas.addEventListener('pointercancel', release);
  canvas.addEventListener('pointerleave', () => {
    tip.hidden = true;
  });
}

function hover(view, event) {
  const found = eventAt(view, event),
    {tip, canvas} = view;
  tip.hidden = found < 0;
  if (found < 0) return;
  const box = canvas.parentNode.getBoundingClientRect();
  tip.replaceChildren(name(nameOf(view, found)), h('span', {}, duration(view.length[found])));
  tip.style.left = `${Math.min(event.clientX - box.left + 12, box.width - 240)}px`;
  tip.style.top = `${event.clientY - box.top + 16}px`;
}

function keyPressed(view, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const act = {
    ArrowLeft: () => pan(view, -0.15),
    ArrowRight: () => pan(view, 0.15),
    '+': () => zoom(view, 0.5),
    '=': () => zoom(view, 0.5),
    '-': () => zoom(view, 2),
    0: () => show(view, 0, view.end),
    n: () => step(view, 1),
    p: () => step(view, -1),
    ...(view.selected < 0 ? {} : {ArrowUp: () => toRow(view, -1), ArrowDown: () => toRow(view, 1)}),
    Escape: () => select(view, -1),
    Enter: () => {
      if (view.selected >= 0) {
        const at = view.start[view.selected],
          long = Math.max(view.length[view.selected], SHORTEST);
        show(view, at - long * 0.1, at + long * 1.1);
      }
    },
  }[event.key];
  if (!act) return;
  event.preventDefault();
  act();
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
