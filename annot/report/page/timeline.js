// The timeline: ranges and GPU activities in lanes on a canvas.
const ROW = 17,
  HEAD = 20,
  AXIS = 24,
  SHORTEST = 20; // closest zoom in ns; the other constants are pixels

function timelineView(run, state) {
  const events = run.timeline;
  if (!events.text.length)
    return [
      h('h1', {}, 'Timeline'),
      emptyText('Nothing to show: the profile contains neither timed ranges nor GPU activity.'),
    ];
  const span = (state.span ??= {from: '', to: '', begin: '', end: '', marked: ''});
  const view = {...prepared(run), state, run, selected: -1, interval: null, picking: false};
  const canvas = h('canvas', {
    id: 'timeline',
    tabindex: '0',
    role: 'application',
    'aria-roledescription': 'timeline',
    'aria-label': 'Timeline',
    'aria-describedby': 'timeline-keys',
  });
  const tip = h('div', {class: 'tip', hidden: true}),
    detail = h('div', {class: 'detail', role: 'status', 'aria-live': 'polite'}),
    longest = h('div'),
    sums = h('div'),
    names = h('div', {}, detail, sums, panel('Longest events in view', longest));
  Object.assign(view, {canvas, tip, detail, longest, sums});
  listen(view);
  select(view, -1);
  const button = (text, label_, work) => h('button', {type: 'button', 'aria-label': label_, onclick: work}, text);
  const buttons = h(
    'div',
    {class: 'filters'},
    button('+', 'Zoom in', () => zoom(view, 0.5)),
    button('−', 'Zoom out', () => zoom(view, 2)),
    button('←', 'Earlier', () => pan(view, -0.3)),
    button('→', 'Later', () => pan(view, 0.3)),
    button('Fit', 'Fit all', () => show(view, 0, view.end)),
    pickButton(view),
    stepChoice(view),
    span.marked !== '' && run.lines[span.marked] && markedLayer(view),
  );
  new ResizeObserver(() => requestDraw(view)).observe(canvas);
  queueMicrotask(() => showSpan(view, span)); // once the view is in the page, and before any key or drag changes it
  return [
    h('h1', {}, 'Timeline'),
    h('p', {class: 'status'}, timelineStatus(events)),
    buttons,
    h(
      'p',
      {class: 'legend'},
      timelinePhases(view).map(phase => h('span', {class: `key ${phase}`}, phase)),
    ),
    exportable(() => timelineFile(view), 'Timeline', h('div', {class: 'lanes'}, canvas, tip)),
    h(
      'p',
      {class: 'hint', id: 'timeline-keys'},
      'W and S, wheel, + and −: zoom. A and D, drag, ← and →: pan. 0: show all. Drag in the time axis or with Shift: ' +
        'select an interval. M: select the interval of the event, or what is in view. n and p: next and previous event. ' +
        '↑ and ↓: other rows. Enter: zoom to the event or the interval. Escape: clear.',
    ),
    h('div', {class: 'names'}, wholeNames(names), names),
  ];
}

function timelinePhases(view) {
  return INKS.filter(phase => view.phases.has(phase));
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
  const all = view.from <= 0 && view.to >= view.end;
  const [from, to] = all ? ['', ''] : [Math.round(view.from), Math.round(view.to)].map(String);
  Object.assign(view.state.span, {from, to});
  remember();
}

// A switch between dragging to pan and dragging to select.
function pickButton(view) {
  return h(
    'button',
    {
      type: 'button',
      'aria-pressed': 'false',
      onclick: event => {
        view.picking = !view.picking;
        event.target.setAttribute('aria-pressed', String(view.picking));
      },
    },
    'Drag to select',
  );
}

function timelineStatus(events) {
  const out = events.left_out ? ` The ${plural(events.left_out, 'lane')} with the least time are left out.` : '';
  if (events.every === 1)
    return `${plural(events.text.length, 'event')} in ${plural(events.lanes.length, 'lane')}.${out}`;
  const drawn = `${count(events.text.length)} of ${count(events.total)} events`;
  return `A sample: ${drawn}, the longest and one in ${count(events.every)} of the others. Sums of intervals count all.${out}`;
}

// The positions of lanes and rows, and the index of the first event of each row in the arrays.
function prepared(run) {
  const {timeline} = run,
    size = timeline.text.length;
  const start = Float64Array.from(timeline.start_ns),
    length = Float64Array.from(timeline.length_ns);
  const lanes = [],
    rows = [],
    phases = new Set(),
    phaseOf = run.rows.phase;
  let top = AXIS,
    end = 1;
  for (const lane of timeline.lanes) {
    lanes.push({...lane, top});
    for (let row = 0; row < lane.rows; row++)
      rows.push({lane: lanes.length - 1, top: top + HEAD + row * ROW, from: 0, to: 0});
    top += HEAD + lane.rows * ROW + 4;
  }
  const firstRow = [];
  rows.forEach((row, place) => {
    firstRow[row.lane] ??= place;
  });
  const row = new Int32Array(size),
    phase = new Array(size);
  for (let event = 0; event < size; event++) {
    row[event] = firstRow[timeline.lane[event]] + timeline.row[event];
    const place = rows[row[event]];
    if (!place.to) place.from = event;
    place.to = event + 1;
    end = Math.max(end, start[event] + length[event]);
    phase[event] = timeline.of[event] < 0 ? 'other' : phaseOf[timeline.of[event]];
    phases.add(phase[event]);
  }
  return {start, length, row, phase, phases, rows, lanes, end, height: top + 4, from: 0, to: end};
}

function stepChoice(view) {
  const {steps} = view.run,
    found = steps.step.slice(0, 1000);
  if (view.run.meta.host_ns === null || !found.length) return null;
  return field(
    'Step',
    choice('step', [['', 'All'], ...found.map((step, place) => [String(place), String(step)])], '', value => {
      if (value === '') return show(view, 0, view.end);
      const begin = steps.start_ns[value],
        long = steps.host_ns[value];
      return show(view, begin - long * 0.02, begin + long * 1.02);
    }),
  );
}

function markedLayer(view) {
  const line = view.run.lines[view.state.span.marked];
  view.marked = new Set(Object.values(line.rows));
  return h(
    'span',
    {class: 'marked'},
    'Highlighted: ',
    name(title(line)),
    ' ',
    h(
      'button',
      {
        type: 'button',
        onclick: event => {
          view.marked = undefined;
          view.state.span.marked = '';
          remember();
          event.target.parentNode.remove();
          requestDraw(view);
        },
      },
      'Clear highlight',
    ),
  );
}

function show(view, from, to) {
  const room = Math.max(to - from, SHORTEST),
    most = view.end * 1.04;
  const wide = Math.min(room, most),
    middle = (from + to) / 2;
  const least = -view.end * 0.02,
    begin = Math.min(Math.max(middle - wide / 2, least), view.end * 1.02 - wide);
  view.from = begin;
  view.to = begin + wide;
  requestDraw(view);
}

function zoom(view, factor, at = (view.from + view.to) / 2) {
  show(view, at - (at - view.from) * factor, at + (view.to - at) * factor);
}

function pan(view, part) {
  const by = (view.to - view.from) * part;
  show(view, view.from + by, view.to + by);
}

function requestDraw(view) {
  if (view.drawRequested) return;
  view.drawRequested = true;
  requestAnimationFrame(() => {
    view.drawRequested = false;
    if (view.canvas.isConnected) draw(view);
  });
}

function colors() {
  const style = getComputedStyle(document.documentElement),
    read = key => style.getPropertyValue(`--${key}`).trim();
  return Object.fromEntries(
    [
      'text',
      'muted',
      'line',
      'surface',
      'accent',
      'faint',
      'on-fill',
      ...INKS.flatMap(phase => [phase, `on-${phase}`]),
    ].map(key => [key, read(key)]),
  );
}

function draw(view) {
  const begun = performance.now(),
    {canvas} = view,
    ratio = Math.min(devicePixelRatio || 1, 2),
    width = canvas.clientWidth;
  canvas.style.height = `${view.height}px`;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(view.height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(view.height * ratio);
  }
  const paper = canvas.getContext('2d');
  paper.setTransform(ratio, 0, 0, ratio, 0, 0);
  paper.clearRect(0, 0, width, view.height);
  const drawn = paint(view, paper, width);
  Object.assign(canvas.dataset, {from: view.from, to: view.to, drawn, ms: (performance.now() - begun).toFixed(2)});
  canvas.setAttribute(
    'aria-label',
    `Timeline, ${timelineSpan(view)}`,
  );
  clearTimeout(view.settled);
  view.settled = setTimeout(() => {
    listLongest(view);
    keepSpan(view);
  }, 120);
}

function timelineSpan(view) {
  return `${instant(Math.max(0, view.from)) || '0'} to ${instant(Math.min(view.to, view.end))} of ${instant(view.end)}`;
}

// Draws what is in view on a canvas or an `SvgPaper`, and returns the number of events.
function paint(view, paper, width) {
  const color = colors();
  paper.font = '11px system-ui, sans-serif';
  paper.textBaseline = 'middle';
  drawAxis(view, paper, color, width);
  let drawn = 0;
  for (const row of view.rows) drawn += drawRow(view, paper, color, width, row);
  drawLanes(view, paper, color);
  drawInterval(view, paper, color, width);
  return drawn;
}

function instant(at) {
  return duration(Math.round(at));
}

function drawAxis(view, paper, color, width) {
  const wide = view.to - view.from,
    parts = Math.max(2, Math.floor(width / 130)),
    raw = wide / parts;
  const power = 10 ** Math.floor(Math.log10(raw)),
    step = [1, 2, 5, 10].find(factor => factor * power >= raw) * power;
  const unit = unitFor([Math.max(Math.abs(view.to), 1)]),
    decimals = Math.max(0, Math.ceil(-Math.log10(step / unit.ns) - 1e-9));
  paper.textAlign = 'left';
  for (let mark = Math.ceil(view.from / step) * step; mark <= view.to; mark += step) {
    const x = ((mark - view.from) / wide) * width;
    paper.fillStyle = color.line;
    paper.fillRect(x, 0, 1, view.height);
    paper.fillStyle = color.muted;
    paper.fillText(`${fixed(mark / unit.ns, Math.min(decimals, 9))} ${unit.name}`, x + 4, AXIS / 2 - 2);
  }
}

function drawLanes(view, paper, color) {
  paper.textAlign = 'left';
  for (const lane of view.lanes) {
    paper.fillStyle = color.surface;
    const text = `${lane.name} · ${plural(lane.total, 'event')}`;
    paper.fillRect(2, lane.top + 2, paper.measureText(text).width + 8, HEAD - 4);
    paper.fillStyle = color.muted;
    paper.fillText(text, 6, lane.top + HEAD / 2);
  }
}

// The first event of a row that ends at or after a time, by binary search: events of a row do not overlap.
function firstFrom(view, row, at) {
  let low = row.from,
    high = row.to;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (view.start[middle] + view.length[middle] < at) low = middle + 1;
    else high = middle;
  }
  return low;
}

function drawRow(view, paper, color, width, row) {
  const scale = width / (view.to - view.from);
  let last = -1,
    drawn = 0;
  for (let event = firstFrom(view, row, view.from); event < row.to && view.start[event] <= view.to; event++) {
    const left = (view.start[event] - view.from) * scale,
      right = Math.max(left + view.length[event] * scale, left + 1);
    if (right <= last) continue; // the pixel is already covered
    const x = Math.max(left, last, 0),
      wide = Math.min(right, width) - x;
    last = wide < 1 ? Math.ceil(right) : right;
    drawn++;
    const dim = view.marked && !view.marked.has(view.run.timeline.of[event]);
    const ink = inkOf(view.phase[event]);
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
  const text = printable(shortNameOf(view, event).slice(0, 200));
  const fits = Math.floor((wide - 8) / 6);
  paper.fillStyle = color;
  paper.fillText(
    text.length > fits ? `${text.slice(0, Math.max(1, fits - 1))}…` : text,
    x + 4,
    top + ROW / 2 - 1,
    wide - 6,
  );
}

function eventAt(view, event_) {
  const box = view.canvas.getBoundingClientRect(),
    y = event_.clientY - box.top;
  const row = view.rows.find(one => y >= one.top && y < one.top + ROW);
  if (!row) return -1;
  const scale = (view.to - view.from) / box.width,
    at = view.from + (event_.clientX - box.left) * scale;
  for (let found = firstFrom(view, row, at - scale * 2); found < row.to && view.start[found] <= at + scale; found++) {
    if (at <= view.start[found] + Math.max(view.length[found], scale * 2)) return found;
  }
  return -1;
}

function nameOf(view, event) {
  return view.run.timeline.texts[view.run.timeline.text[event]];
}

// The short name of a kernel; other events have one name.
function shortNameOf(view, event) {
  const text = nameOf(view, event);
  return kernelNames(view.run).get(text)?.short ?? text;
}

function describe(view, event) {
  const {run} = view,
    of = run.timeline.of[event],
    line = of < 0 ? undefined : run.lines[run.lineOf.get(of)];
  return h(
    'dl',
    {class: 'about'},
    h('dt', {}, 'Event'),
    h('dd', {}, kernelName(kernelNames(run), nameOf(view, event))),
    h('dt', {}, 'Time'),
    h('dd', {}, `${duration(view.length[event])}, from ${duration(view.start[event])}`),
    h('dt', {}, 'Lane'),
    h('dd', {}, view.lanes[view.rows[view.row[event]].lane].name),
    line && [
      h('dt', {}, 'Layer'),
      h(
        'dd',
        {},
        h('a', {href: `#layer/${line.place}`}, name(title(line))),
        ' ',
        name(line.module, 'module'),
        ` ${run.rows.phase[of]}`,
      ),
    ],
  );
}

function select(view, event, center) {
  view.selected = event;
  view.detail.replaceChildren(
    event < 0 ? emptyText('Click an event, or press n, to see its details.') : describe(view, event),
  );
  if (event >= 0 && center) {
    const middle = view.start[event] + view.length[event] / 2,
      half = (view.to - view.from) / 2;
    if (middle < view.from || middle > view.to) show(view, middle - half, middle + half);
  }
  requestDraw(view);
}

function listLongest(view) {
  const found = [];
  for (const row of view.rows) {
    for (let event = firstFrom(view, row, view.from); event < row.to && view.start[event] <= view.to; event++) {
      if (found.length === 10 && view.length[event] <= view.length[found[9]]) continue;
      found.push(event);
      found.sort((a, b) => view.length[b] - view.length[a]);
      found.length = Math.min(found.length, 10);
    }
  }
  view.longest.replaceChildren(
    found.length
      ? sortTable(
          'Longest events',
          columnsOf('events', found, {
            event: {
              value: event => nameOf(view, event),
              show: (value, event) =>
                h(
                  'button',
                  {type: 'button', class: 'link', onclick: () => select(view, event, true)},
                  kernelText(kernelNames(view.run), value),
                ),
            },
            lane: {value: event => view.lanes[view.rows[view.row[event]].lane].name},
            start_ns: {value: event => view.start[event]},
            length_ns: {value: event => view.length[event]},
          }),
          found,
        )
      : emptyText('No events in view.'),
  );
}
