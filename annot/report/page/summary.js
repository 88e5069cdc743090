// The summary view: the first screen, totals, time breakdown, longest layers and kernels, more advice, notes.

function summaryView(run) {
  const rows = new Map(records(run.summary).map(row => [`${row.section} ${row.item}`, row]));
  return [
    firstScreen(run, rows),
    perStep(run),
    cards(run, rows),
    shareOfSteps(run, rows),
    h('div', {class: 'columns'}, topLayers(run), run.kernels.total ? topKernels(run) : layersOfParts(run)),
    advicePanel(run),
    notesPanel(run),
    aboutPanel(run),
  ];
}

function cards(run, rows) {
  const {meta} = run,
    device = run.time === 'gpu_ns',
    steps = meta.step_ns,
    shown = [];
  const add = (label_, value, more) =>
    value &&
    shown.push(h('div', {class: 'card'}, h('dt', {}, label_), h('dd', {}, value, more && h('small', {}, more))));
  if (device) {
    add('GPU time', duration(meta.gpu_ns), `${share(meta.attributed_gpu_ns, meta.gpu_ns) || '0.0%'} in ranges`);
    add('GPU busy', percent(rows.get('gpu busy')?.share), steps ? 'of the steps' : 'from the first to the last kernel');
    add(`On ${run.units}`, percent(rows.get('gpu tensor_cores')?.share), 'of kernel time');
    add('Kernels', count(meta.kernels), plural(meta.copies, 'copy or memset', 'copies and memsets'));
  }
  if (meta.host_ns !== null && meta.ranges)
    add('Host time', duration(meta.host_ns), `${plural(meta.ranges, 'range')}, ${plural(meta.threads, 'thread')}`);
  if (meta.steps) {
    const warmup = steps?.warmup ? `, ${count(steps.warmup)} of warm-up excluded` : '';
    add(
      'Step',
      steps ? duration(steps.mean) : count(meta.steps),
      steps ? `mean of ${count(meta.steps - steps.warmup)}${warmup}` : 'steps',
    );
  }
  return shown.length
    ? h('dl', {class: 'cards'}, shown)
    : emptyText('The profile is empty: it contains neither ranges nor GPU activity.');
}

// The breakdown of the time of the steps into disjoint parts, which add up to the total.
function shareOfSteps(run, rows) {
  const wall = rows.get('time wall');
  if (!wall?.ns) return null;
  const parts = Object.entries(run.shares)
    .map(([key, [, meaning]]) => ({key, meaning, ...rows.get(`time ${key}`)}))
    .filter(one => one.ns || one.hidden_ns || (one.key === 'tensor_cores' && run.time === 'gpu_ns'));
  const whole = run.meta.steps ? 'the steps' : 'the run';
  const devices = wall.count > 1 ? ` on ${wall.count} ${run.time === 'gpu_ns' ? 'devices' : 'processes'}` : '';
  return panel(
    `Time breakdown of ${whole}`,
    h(
      'div',
      {class: 'scroll'},
      h(
        'table',
        {class: 'plain'},
        h('caption', {class: 'hidden'}, `Shares of ${whole}`),
        h(
          'thead',
          {},
          h(
            'tr',
            {},
            ['Part', ...['ns', 'share', 'hidden_ns'].map(key => titleOf('parts', key))].map((text, place) =>
              h('th', {scope: 'col', class: place ? 'number' : 'text'}, text),
            ),
            h('th', {scope: 'col', class: 'text meaning'}, 'Meaning'),
          ),
        ),
        h(
          'tbody',
          {},
          parts.map(one =>
            h(
              'tr',
              {},
              h('th', {scope: 'row', class: 'text'}, h('span', {class: `key part-${one.key}`}, partWords(run, one.key))),
              h('td', {class: 'number'}, duration(one.ns)),
              h('td', {class: 'number'}, percent(one.share)),
              h('td', {class: 'number'}, one.hidden_ns ? duration(one.hidden_ns) : ''),
              h('td', {class: 'text meaning'}, one.meaning),
            ),
          ),
        ),
      ),
    ),
    h(
      'p',
      {class: 'hint'},
      `${run.meta.steps ? 'Sum of the steps' : 'Total'}: ${duration(wall.ns)}${devices}. Overlapped: time during which a part above it runs.`,
    ),
  );
}

function topLayers(run) {
  const {numbers, whole, places} = largestParts(run, 10);
  const best = places.map(place => lineAt(run, place));
  if (!best.length) return panel('Layers', emptyText('No ranges were recorded. Use emit_ranges(model).'));
  const longest = numbers[best[0].place].self;
  return panel(
    'Layers with the most self time',
    h(
      'ol',
      {class: 'top'},
      best.map(line =>
        h(
          'li',
          {},
          h('a', {href: partLink(line.place)}, pathName(partName(line))),
          ' ',
          line.module && name(line.module, 'module'),
          foldSize(line),
          h(
            'span',
            {class: 'value'},
            timeAndShare(numbers[line.place].self, whole),
          ),
          h('div', {class: 'bar', 'aria-hidden': 'true'}, selfBars(run, line, longest)),
        ),
      ),
    ),
    h('p', {}, h('a', {href: '#layers'}, 'All layers')),
  );
}

function timeAndShare(ns, whole) {
  return [duration(ns), share(ns, whole)].filter(Boolean).join(' · ');
}

function selfBars(run, line, longest) {
  const self = run.rows[run.time.replace('_ns', '_self_ns')];
  const sums = {};
  for (const place of line.members ?? [line.place])
    for (const [phase, row] of Object.entries(run.lines[place].rows)) sums[phase] = (sums[phase] ?? 0) + (self[row] ?? 0);
  return Object.entries(sums).map(
    ([phase, ns]) =>
      ns > 0 && withWidth(h('span', {class: inkOf(phase)}), (100 * ns) / longest),
  );
}

function topKernels(run) {
  const rows = records(run.kernels).slice(0, 10);
  return panel(
    'Kernels with the most time',
    h(
      'ol',
      {class: 'top'},
      rows.map(row =>
        h(
          'li',
          {},
          kernelName(kernelNames(run), row.name),
          h('span', {class: 'value'}, timeAndShare(row.gpu_ns, run.meta.gpu_ns)),
          h(
            'div',
            {class: 'bar', 'aria-hidden': 'true'},
            row.gpu_ns > 0 && withWidth(h('span', {class: 'other'}), (100 * row.gpu_ns) / rows[0].gpu_ns),
          ),
        ),
      ),
    ),
    h('p', {}, h('a', {href: '#kernels'}, 'All kernels')),
  );
}

function advicePanel(run) {
  const others = records(run.advice).slice(BEST);
  return others.length > 0 && panel('More advice', adviceList(run, others));
}

function notesPanel(run) {
  return (
    run.meta.notes.length > 0 &&
    panel(
      'Notes',
      h(
        'ul',
        {class: 'notes'},
        run.meta.notes.map(note => h('li', {}, note)),
      ),
    )
  );
}

function aboutPanel(run) {
  const {meta} = run;
  const facts = [
    ['Profile', meta.source],
    ['Format', meta.format],
    ['Written by', meta.producer],
    ['Steps', meta.steps ? `${count(meta.steps)}, ${meta.steps_found_by}` : `no steps, because ${meta.steps_missing}`],
    [
      'Devices',
      records(run.summary)
        .filter(row => row.section === 'system' && row.item === 'device')
        .map(row => `${row.count} × ${row.text}`)
        .join(', '),
    ],
  ];
  return panel(
    'Profile',
    h(
      'dl',
      {class: 'about'},
      facts.filter(([, value]) => value).map(([key, value]) => [h('dt', {}, key), h('dd', {}, name(value))]),
    ),
  );
}
