// The views for roofline, steps, kernels and ranks.

function rooflineView(run) {
  const names = COLUMNS.roofline.map(one => one.name),
    pick = (table, at) => Object.fromEntries(names.map(key => [key, table[key]?.[at]]));
  const lines = run.lines.flatMap(({place, rows}) =>
    Object.entries(rows).map(([phase, row]) => ({place, ...pick(run.rows, row), phase})),
  );
  const folds = run.roofline_folds.place.map((place, at) => ({place, ...pick(run.roofline_folds, at)}));
  const points = [...lines, ...folds].filter(one => one.intensity > 0 && one.flops_per_s > 0);
  if (!points.length)
    return [
      h('h1', {}, 'Roofline'),
      emptyText('The profile has no shapes, so that FLOPs are unknown. Use emit_ranges(model, shapes=True).'),
    ];
  const {shown, inside} = foldedRows(run, points);
  return [
    h('h1', {}, 'Roofline'),
    h('p', {class: 'status'}, `Peaks: ${peaksText(run.peaks)}`),
    run.charts.roofline.map(chartPanel),
    sortTable(
      'Layers in the roofline',
      [
        {
          title: 'Layer',
          text: true,
          value: one => title(lineAt(run, one.place)),
          show: (_, one) => layerCell(run, one.place),
        },
        ...columnsOf('roofline', points),
      ],
      shown,
      {by: 'time_ns', shown: LISTED, inside},
    ),
  ];
}

// Rows of places and phases with those of a fold as one, and the rows inside a row.
function foldedRows(run, rows) {
  const members = new Map(),
    shown = rows.filter(one => {
      const fold = foldedPlace(run, one.place);
      if (fold === one.place) return !isFold(run, fold) || foldedPlace(run, lineAt(run, fold).members[0]) === fold;
      const key = `${fold} ${one.phase}`;
      members.set(key, [...(members.get(key) ?? []), one]);
      return false;
    });
  return {shown, inside: one => members.get(`${one.place} ${one.phase}`)};
}

function peaksText({device, flops, bandwidth, source}) {
  const of = device ? `${device}: ` : '',
    rates = Object.entries(flops).map(([precision, rate]) => `${precision} ${amount(rate, 'FLOP/s')}`.replace('any ', ''));
  if (!rates.length) return `${of}unknown. ${source}`;
  return `${of}${[bandwidth ? amount(bandwidth, 'B/s') : 'bandwidth unknown', ...rates].join(', ')} (${source})`;
}

function stepsView(run) {
  const rows = records(run.steps);
  const {meta} = run;
  if (!rows.length) return [h('h1', {}, 'Steps'), emptyText(`No steps, because ${meta.steps_missing}.`)];
  const processes = [...new Set(rows.map(row => row.process))];
  const of = meta.step_ns;
  const named = name => `${name} ${duration(of[name])}`;
  const times =
    of && `, ${named('mean')}, ${named('median')}, IQR ${duration(of.iqr)}, ${duration(of.min)} to ${duration(of.max)}`;
  return [
    h('h1', {}, 'Steps'),
    h('p', {class: 'status'}, `${plural(rows.length, 'step')} (${meta.steps_found_by})${times || ''}`),
    run.charts.steps.map(chartPanel),
    stepTable(run, rows, processes),
  ];
}

function stepTable(run, rows, processes) {
  const columns = columnsOf('steps', rows, {
    process: processes.length > 1 && {value: row => processes.indexOf(row.process) + 1},
    gpu_ns: run.time === 'gpu_ns' && {},
  });
  const step = {
    title: 'Step',
    value: row => row.step,
    show: (value, row) => `${count(value)}${row.warmup ? ' (warm-up)' : ''}`,
  };
  return sortTable('Steps', [step, ...columns], rows);
}

function kernelsView(run, state) {
  const rows = records(run.kernels);
  if (!rows.length) return [h('h1', {}, 'Kernels'), emptyText('No GPU activity was recorded.')];
  const classes = records(run.classes),
    holder = h('div'),
    names = kernelNames(run),
    whole = run.meta.gpu_ns;
  const filter = (state.kernels ??= {search: '', kind: ''});
  const cut = rows.length < run.kernels.total;
  const draw = () => {
    const found = rows.filter(
      row => (!filter.kind || row.kind === filter.kind) && `${row.name} ${row.short}`.toLowerCase().includes(filter.search.toLowerCase()),
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
          {title: 'Name', text: true, value: row => row.short, show: (_, row) => kernelName(names, row.name)},
          ...columnsOf('kernels', rows, {...shareOf(whole), calls: {class: 'minor'}}),
        ],
        found,
        {by: 'gpu_ns'},
      ),
    );
    remember();
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
    'Kinds of kernels',
    [
      {title: 'Kind', text: true, value: one => one.kind},
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
      ...columnsOf('kinds', classes, shareOf(whole)),
    ],
    classes,
    {by: 'gpu_ns'},
  );
}

// The column with the share of the GPU time.
function shareOf(whole) {
  return {main_ns: {value: row => (whole ? row.gpu_ns / whole : null)}};
}

// A view of another package.
// The first cell of a layer.
const LAYER = {
  value: row => row.layer || '(model)',
  show: (value, row) => [pathName(value), ' ', name(row.module, 'module')],
};

function moreView(run, place) {
  const {heading, columns, rows} = run.more[place];
  COLUMNS[heading] = columns;
  const found = records(rows);
  return [h('h1', {}, heading), perStep(run), sortTable(heading, columnsOf(heading, found, {layer: LAYER}), found)];
}

function ranksView(data) {
  const {across, each, time, notes, cut, verdict} = data.ranks,
    what = time.startsWith('gpu') ? 'GPU' : 'Host';
  const layers = records(across),
    ranks = each.map(row => ({...row, step: row.step_ns?.mean}));
  return [
    h('h1', {}, 'Ranks'),
    cut && h('p', {class: 'cut'}, cut),
    verdict && h('p', {}, h('strong', {}, verdict)),
    panel(
      'Each rank',
      sortTable('Ranks', columnsOf('ranks', ranks), ranks),
    ),
    panel(
      `${what} time by layer, with the slowest rank`,
      sortTable(
        'Layers across ranks',
        [
          {title: 'Layer', text: true, ...LAYER},
          ...columnsOf('across', layers, {
            spread_share: {value: row => (row.median_ns ? row.spread_ns / row.median_ns : null)},
            collective_median_ns: {value: row => row.collective_median_ns || null},
          }),
        ],
        layers,
        {by: 'median_ns'},
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
