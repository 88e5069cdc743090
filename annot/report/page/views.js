// The views for roofline, steps, kernels and ranks.

function rooflineView(run) {
  const points = run.lines
    .flatMap(line =>
      Object.entries(line.rows).map(([phase, row]) => ({
        place: line.place,
        title: title(line),
        module: line.module,
        phase,
        intensity: run.rows.intensity[row],
        speed: run.rows.flops_per_s[row],
        moved: run.rows.bytes_per_s[row],
        ns: run.rows.time_ns[row],
        precision: run.rows.precision[row],
        roof: run.rows.roof_share[row],
        bound: run.rows.bound[row],
      })),
    )
    .filter(one => one.intensity > 0 && one.speed > 0);
  const {peaks} = run;
  const status = peaks ? peaksText(peaks) : 'The peaks of the device are unknown. Run annot roofline --measure.';
  if (!points.length)
    return [
      h('h1', {}, 'Roofline'),
      emptyText('The work of the layers is unknown. Use emit_ranges(model) with shapes=True.'),
    ];
  return [
    h('h1', {}, 'Roofline'),
    h('p', {class: 'status'}, status),
    h(
      'p',
      {class: 'legend'},
      [...new Set(points.map(one => one.phase))].map(phase => h('span', {class: `key ${phase}`}, phase)),
      h('span', {class: 'hint'}, 'Larger dots take more time.'),
    ),
    panel('FLOP/s over FLOP per byte', rooflinePlot(run, points)),
    sortTable(
      'Layers in the roofline',
      [
        {
          title: 'Layer',
          text: true,
          value: one => one.title,
          show: (value, one) => [
            h('a', {href: `#layer/${one.place}`}, pathName(value)),
            ' ',
            name(one.module, 'module'),
          ],
        },
        {title: 'Phase', text: true, value: one => one.phase},
        {title: 'Time', value: one => one.ns, show: duration},
        {title: 'FLOP/B', class: 'minor', value: one => one.intensity, show: value => amount(value)},
        {title: 'FLOP/s', value: one => one.speed, show: value => amount(value)},
        {title: 'B/s', class: 'minor', value: one => one.moved, show: value => amount(value)},
        {title: 'Precision', text: true, class: 'minor', value: one => one.precision},
        {title: 'Roof', help: 'Share of the roof that the layer reaches', value: one => one.roof, show: percent},
        {title: 'Bound by', text: true, value: one => one.bound},
      ].filter(column => points.some(one => column.value(one))),
      points,
      {by: 2},
    ),
  ];
}

function peaksText(peaks) {
  const flops = Object.entries(peaks.flops).map(([precision, value]) => `${precision} ${amount(value, 'FLOP/s')}`);
  const numbers = [...(peaks.bandwidth ? [amount(peaks.bandwidth, 'B/s')] : []), ...flops].join(', ');
  return `${peaks.device ? `${peaks.device}: ` : ''}${numbers}. Source: ${peaks.source}.`;
}

function stepsView(run) {
  const rows = records(run.steps);
  if (!rows.length)
    return [h('h1', {}, 'Steps'), emptyText('No steps were recorded. Use "for … in annot.batches(loader):".')];
  const {meta} = run,
    host = meta.host_ns !== null,
    processes = [...new Set(rows.map(row => row.process))];
  const of = meta.step_ns;
  const times =
    of && `, median ${duration(of.median)}, IQR ${duration(of.iqr)}, ${duration(of.min)} to ${duration(of.max)}`;
  const shown = processes.slice(0, 8).map((process, place) => {
    const mine = rows.filter(row => row.process === process);
    const chart = stepChart(
      seriesOf(mine, host),
      mine[0].step,
      mine.map(row => row.warmup),
    );
    return panel(
      processes.length > 1
        ? `Process ${place + 1} of ${processes.length}`
        : host
          ? 'Host time in each step'
          : 'GPU time in each step',
      chart,
    );
  });
  return [
    h('h1', {}, 'Steps'),
    h('p', {class: 'status'}, `${plural(rows.length, 'step')} (${meta.steps_found_by})${times || ''}`),
    shown,
    stepTable(run, rows, processes),
  ];
}

// The parts of a step: data wait, phases and the rest on the host, or GPU time if host times are unknown.
function seriesOf(rows, host) {
  if (!host) return [{title: 'gpu', values: rows.map(row => row.gpu_ns)}];
  const parts = ['data', 'forward', 'backward', 'optimizer'].map(key => ({
    title: key,
    values: rows.map(row => row[`${key}_ns`] ?? 0),
  }));
  const rest = rows.map(row => Math.max(0, row.host_ns - row.forward_ns - row.backward_ns - row.optimizer_ns));
  return [...parts, {title: 'other', values: rest}].filter(one => one.values.some(Boolean));
}

function stepTable(run, rows, processes) {
  const timed = (title_, key) => ({title: title_, value: row => row[key], show: duration});
  const columns = [
    {title: 'Step', value: row => row.step, show: (value, row) => `${count(value)}${row.warmup ? ' (warm-up)' : ''}`},
    ...(processes.length > 1
      ? [{title: 'Process', value: row => processes.indexOf(row.process) + 1, show: count}]
      : []),
    timed('Host', 'host_ns'),
    timed('Data', 'data_ns'),
    timed('Forward', 'forward_ns'),
    timed('Backward', 'backward_ns'),
    timed('Optimizer', 'optimizer_ns'),
    ...(run.time === 'gpu_ns'
      ? [timed('GPU', 'gpu_ns'), {title: 'Kernels', value: row => row.kernels, show: count}]
      : []),
  ];
  return sortTable(
    'Steps',
    columns.filter(column => column.title === 'Step' || rows.some(row => column.value(row))),
    rows,
  );
}

function kernelsView(run, state) {
  const rows = records(run.kernels);
  if (!rows.length) return [h('h1', {}, 'Kernels'), emptyText('No GPU activity was recorded.')];
  const classes = records(run.classes),
    holder = h('div'),
    whole = run.meta.gpu_ns;
  const filter = (state.kernels ??= {search: '', kind: ''});
  const timed = (title_, key) => ({title: title_, value: row => row[key], show: duration});
  const cut = rows.length < run.kernels.total;
  const draw = () => {
    const found = rows.filter(
      row => (!filter.kind || row.kind === filter.kind) && row.name.toLowerCase().includes(filter.search.toLowerCase()),
    );
    holder.replaceChildren(
      h(
        'p',
        {class: 'status', role: 'status'},
        `${plural(found.length, 'name')} of ${count(run.kernels.total)}${cut ? '; the page has the longest only' : ''}`,
      ),
      sortTable(
        'Kernels',
        [
          {title: 'Name', text: true, value: row => row.name, show: value => name(value, 'kernel')},
          {title: 'Kind', text: true, class: 'minor', value: row => row.kind},
          {title: 'Library', text: true, class: 'minor', value: row => row.library},
          {
            title: 'TC',
            help: 'Tensor Cores',
            text: true,
            class: 'minor',
            value: row => (row.tensor_cores ? 'yes' : ''),
          },
          {title: 'Calls', class: 'minor', value: row => row.calls, show: count},
          timed('Time', 'gpu_ns'),
          {title: 'Share', value: row => (whole ? row.gpu_ns / whole : null), show: percent},
          timed('Mean', 'mean_ns'),
          timed('Min', 'min_ns'),
          timed('Max', 'max_ns'),
          {title: 'Layers', value: row => row.layers, show: count},
        ],
        found,
        {by: 5},
      ),
    );
  };
  draw();
  return [
    h('h1', {}, 'Kernels'),
    perStep(run),
    panel('Kernels by kind', classTable(classes, whole)),
    panel(
      'Kernels by name',
      h(
        'form',
        {class: 'filters', role: 'search', onsubmit: event => event.preventDefault()},
        field(
          'Search',
          h('input', {
            type: 'search',
            id: 'search',
            value: filter.search,
            'aria-keyshortcuts': '/',
            oninput: event => {
              filter.search = event.target.value;
              debounce(draw);
            },
          }),
        ),
        field(
          'Kind',
          choice(
            'kind',
            [['', 'All kinds'], ...[...new Set(classes.map(one => one.kind))].map(kind => [kind, kind])],
            filter.kind,
            value => {
              filter.kind = value;
              draw();
            },
          ),
        ),
        wholeNames(holder),
      ),
      holder,
    ),
  ];
}

function classTable(classes, whole) {
  const longest = Math.max(1, ...classes.map(one => one.gpu_ns));
  return sortTable(
    'Kernels by kind',
    [
      {title: 'Kind', text: true, value: one => one.kind},
      {title: 'Library', text: true, value: one => one.library},
      {title: 'TC', help: 'Tensor Cores', text: true, class: 'minor', value: one => (one.tensor_cores ? 'yes' : '')},
      {
        title: 'Relative',
        class: 'bars minor',
        value: one => one.gpu_ns,
        show: value =>
          h(
            'div',
            {class: 'bar', 'aria-hidden': 'true'},
            withWidth(h('span', {class: 'other'}), (100 * value) / longest),
          ),
      },
      {title: 'Time', value: one => one.gpu_ns, show: duration},
      {title: 'Share', value: one => (whole ? one.gpu_ns / whole : null), show: percent},
      {title: 'Calls', value: one => one.calls, show: count},
      {title: 'Names', value: one => one.names, show: count},
      {title: 'Layers', value: one => one.layers, show: count},
    ],
    classes,
    {by: 4},
  );
}

function ranksView(data) {
  const {across, each, time, notes} = data.ranks,
    what = time.startsWith('gpu') ? 'GPU' : 'Host';
  const timed = (title_, key) => ({title: title_, value: row => row[key], show: duration});
  const present = (columns, rows) =>
    columns.filter(column => rows.some(row => known(column.value(row)) && column.value(row) !== ''));
  const layers = records(across);
  return [
    h('h1', {}, 'Ranks'),
    panel(
      'Each rank',
      sortTable(
        'Ranks',
        present(
          [
            {title: 'Rank', value: row => row.rank, show: count},
            timed('GPU', 'gpu_ns'),
            timed('Host', 'host_ns'),
            timed('Median step', 'step'),
            {title: 'Steps', value: row => row.steps, show: count},
            timed('Collectives', 'collective_ns'),
            {title: 'Profile', text: true, value: row => row.source, show: value => name(value)},
            {title: 'Problem', text: true, value: row => row.error},
          ],
          each.map(row => ({...row, step: row.step_ns?.median})),
        ),
        each.map(row => ({...row, step: row.step_ns?.median})),
      ),
    ),
    panel(
      `${what} time by layer, with the slowest rank`,
      sortTable(
        'Layers across ranks',
        [
          {
            title: 'Layer',
            text: true,
            value: row => row.layer || '(model)',
            show: (value, row) => [pathName(value), ' ', name(row.module, 'module')],
          },
          {title: 'Phase', text: true, value: row => row.phase},
          timed('Median', 'median_ns'),
          timed('Slowest', 'max_ns'),
          {title: 'Rank', help: 'Slowest rank', value: row => row.slowest, show: count},
          {...timed('Spread', 'spread_ns'), help: 'Slowest minus fastest rank'},
          {title: 'On ranks', value: row => row.ranks, show: count},
        ],
        layers,
        {by: 2},
      ),
    ),
    notes.length > 0 &&
      panel(
        'Notes',
        h(
          'ul',
          {class: 'notes'},
          notes.map(note => h('li', {}, note)),
        ),
      ),
  ];
}
