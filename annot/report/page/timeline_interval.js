// An interval of the timeline: its sums by phase, layer and kernel, and how long the GPU is busy and idle in it.

// Selects an interval in ns, or none. `done`: the reader has released it.
function pick(view, interval, done) {
  view.interval = interval && [Math.max(0, Math.min(...interval)), Math.min(view.end, Math.max(...interval))];
  if (view.interval && view.interval[1] <= view.interval[0]) view.interval = null;
  requestDraw(view);
  if (!done) return;
  const [begin, end] = view.interval?.map(at => String(Math.round(at))) ?? ['', ''];
  Object.assign(view.state.span, {begin, end});
  remember();
  view.sums.replaceChildren(...(view.interval ? intervalSums(view) : []));
  if (view.interval) announce(`Interval of ${instant(end - begin)}`);
}

// Draws the interval over the lanes, with its length in the axis.
function drawInterval(view, paper, color, width) {
  if (!view.interval) return;
  const [left, right] = view.interval.map(at => ((at - view.from) / (view.to - view.from)) * width);
  paper.fillStyle = color.accent;
  paper.globalAlpha = 0.14;
  paper.fillRect(left, 0, right - left, view.height);
  paper.globalAlpha = 1;
  for (const x of [left, right]) paper.fillRect(x - 0.75, 0, 1.5, view.height);
  const text = instant(view.interval[1] - view.interval[0]),
    wide = paper.measureText(text).width + 10,
    at = Math.max(0, Math.min((left + right - wide) / 2, width - wide));
  paper.fillRect(at, 1, wide, AXIS - 8);
  paper.fillStyle = color['on-fill'];
  paper.textAlign = 'left';
  paper.fillText(text, at + 5, AXIS / 2 - 3);
}

// The events of a row that lie in an interval, with the time of each in it.
function* clipped(view, row, [begin, end]) {
  for (let event = firstFrom(view, row, begin); event < row.to && view.start[event] < end; event++) {
    const ns = Math.min(end, view.start[event] + view.length[event]) - Math.max(begin, view.start[event]);
    if (ns > 0) yield [event, ns];
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
  const times = new Map(),
    lacking = new Map();
  for (const row of view.rows) {
    const {device} = view.lanes[row.lane];
    if (!device) continue;
    if (!times.has(device)) times.set(device, []);
    for (const [event, ns] of clipped(view, row, interval)) {
      const begin = Math.max(interval[0], view.start[event]);
      times.get(device).push([begin, begin + ns]);
    }
  }
  for (const {cell, lane, length_ns} of shares.length ? records(view.run.timeline.cells.busy) : []) {
    const {device} = view.lanes[lane];
    lacking.set(device, (lacking.get(device) ?? 0) + length_ns * shares[cell]);
  }
  return [...times].map(([device, parts]) => {
    let busy = lacking.get(device) ?? 0,
      until = -Infinity;
    for (const [begin, end] of parts.sort((a, b) => a[0] - b[0])) {
      busy += Math.max(0, end - Math.max(begin, until));
      until = Math.max(until, end);
    }
    return {device, busy};
  });
}

// The activities of the GPUs in an interval, with their time in it.
function workIn(view, interval) {
  return view.rows
    .filter(row => view.lanes[row.lane].device)
    .flatMap(row => [...clipped(view, row, interval)].map(([event, ns]) => ({event, ns})));
}

// The sums of the events that the page lacks, and how far they may be off: the ends of the interval cut cells.
function lackingIn(view, shares) {
  const {cell, of, text, calls, length_ns} = view.run.timeline.cells?.sums ?? {cell: []},
    found = [];
  let off = 0;
  cell.forEach((place, at) => {
    const part = shares[place];
    if (!part) return;
    if (part < 1) off += Math.abs(length_ns[at]) * Math.max(part, 1 - part);
    const phase = of[at] < 0 ? 'other' : view.run.rows.phase[of[at]];
    found.push({of: of[at], text: text[at], phase, calls: calls[at] * part, ns: length_ns[at] * part});
  });
  return {found, off};
}

// The ranges of the host in an interval, with the time of each outside the ranges in it.
function rangesIn(view, interval) {
  const found = new Map();
  view.rows.forEach((row, place) => {
    const {kind} = view.lanes[row.lane];
    if (kind !== 'thread' && kind !== 'layers') return;
    for (const [event, ns] of clipped(view, row, interval)) {
      found.set(event, {event, ns});
      const outer = outerOf(view, event, place);
      if (found.has(outer)) found.get(outer).ns -= ns;
    }
  });
  return [...found.values()];
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

// Sums of times by a key, longest first.
function sumsBy(parts, key) {
  const sums = new Map();
  for (const {calls, ns, ...more} of parts) {
    const sum = sums.get(more[key]) ?? {...more, calls: 0, ns: 0};
    sum.calls += calls;
    sum.ns += ns;
    sums.set(more[key], sum);
  }
  return [...sums.values()].filter(sum => sum.ns >= 0.5).sort((a, b) => b.ns - a.ns);
}

function intervalSums(view) {
  const {interval, run} = view,
    long = interval[1] - interval[0],
    shares = cellsIn(view, interval),
    devices = busyOf(view, interval, shares),
    events = devices.length ? workIn(view, interval) : rangesIn(view, interval),
    {of, text, texts} = run.timeline,
    {found, off} = lackingIn(view, shares),
    parts = [
      ...events.map(({event, ns}) => ({of: of[event], text: text[event], phase: view.phase[event], calls: 1, ns})),
      ...found,
    ],
    layers = sumsBy(parts, 'of'),
    whole = layers.reduce((sum, one) => sum + one.ns, 0),
    calls = parts.reduce((sum, one) => sum + one.calls, 0);
  const button = (label, work) => h('button', {type: 'button', onclick: work}, label);
  return [
    panel(
      `Interval from ${instant(interval[0])} to ${instant(interval[1])}`,
      intervalCards(long, devices, sumsBy(parts, 'phase'), whole, Math.round(calls)),
      off >= 0.5 &&
        h(
          'p',
          {class: 'hint'},
          `Times are correct to ±${instant(Math.max(1, off))}: both ends of the interval are inside cells of ` +
            'time, for which the page has only the sums of short events.',
        ),
      run.timeline.left_out > 0 &&
        h('p', {class: 'hint'}, `The sums exclude ${plural(run.timeline.left_out, 'lane')} that the page does not contain.`),
      h(
        'p',
        {class: 'filters'},
        button('Zoom to the interval', () => show(view, ...interval)),
        button('Clear the interval', () => {
          pick(view, null, true);
          view.canvas.focus();
        }),
      ),
      h(
        'div',
        {class: devices.length ? 'columns' : ''},
        layerSums(run, layers, whole, devices.length > 0),
        devices.length > 0 &&
          sumTable('Kernels in the interval', 'Kernel', sumsBy(parts, 'text'), whole, {
            value: one => texts[one.text],
            show: value => kernelName(kernelNames(run), value),
          }),
      ),
    ),
  ];
}

function intervalCards(long, devices, phases, whole, number) {
  const cards = [
    ['Length', instant(long)],
    ...devices.flatMap(({device, busy}) => [
      [`${device} busy`, instant(busy), share(busy, long)],
      [`${device} idle`, instant(long - busy) || '0', share(long - busy, long)],
    ]),
    [devices.length ? 'Kernels and copies' : 'Ranges', count(number)],
    ...phases.map(one => [h('span', {class: `key ${one.phase}`}, one.phase), instant(one.ns), share(one.ns, whole)]),
  ];
  return h(
    'dl',
    {class: 'pairs'},
    cards.map(([term, value, more]) => h('div', {}, h('dt', {}, term), h('dd', {}, value, more && ` (${more})`))),
  );
}

function layerSums(run, layers, whole, device) {
  const lineOf = one => run.lines[run.lineOf.get(one.of)];
  return sumTable(
    device ? 'GPU time by layer and phase' : 'Host time by layer and phase, child layers excluded',
    'Layer',
    layers,
    whole,
    {
      value: one => (lineOf(one) ? title(lineOf(one)) : '(other)'),
      show: (value, one) => [
        lineOf(one) ? h('a', {href: `#layer/${lineOf(one).place}`}, pathName(value)) : value,
        ' ',
        lineOf(one) && name(lineOf(one).module, 'module'),
      ],
    },
    {title: 'Phase', text: true, value: one => (one.of < 0 ? '' : run.rows.phase[one.of])},
  );
}

function sumTable(caption, heading_, sums, whole, first, ...more) {
  return h(
    'div',
    {class: 'sums'},
    h('h3', {}, caption),
    sortTable(
      caption,
      [
        {title: heading_, text: true, ...first},
        ...more,
        {title: 'Time', value: one => Math.round(one.ns), show: duration},
        {title: 'Share', value: one => one.ns, show: value => share(value, whole)},
        {title: 'Count', class: 'minor', value: one => Math.round(one.calls), show: count},
      ],
      sums,
      {shown: 15},
    ),
  );
}
