// One layer: times, work, counters, shapes, kernels, steps and advice.
function layerView(run, state, place) {
  if (run.folds[place - run.lines.length]) return foldView(run, place);
  const line = run.lines[place];
  if (!line) return [h('h1', {}, 'Layer'), emptyText('This profile does not contain the layer.')];
  return [
    crumbs(run, line),
    h('h1', {}, name(title(line)), ' ', name(line.module, 'module')),
    sourceOf(run, line),
    perStep(run),
    h(
      'div',
      {class: 'columns'},
      panel('Times and work', factTable(run, line, 'Times and work', COLUMNS.facts)),
      h(
        'div',
        {},
        panel('Share of the run', layerShare(run, line), shapesOf(run, line)),
        childrenOf(run, place),
        layerAdvice(run, line),
      ),
    ),
    hasCounters(run, line) && panel('Hardware counters', factTable(run, line, 'Hardware counters', COLUMNS.counters)),
    kernelsOf(run, place),
    layerSteps(run, line),
    h(
      'p',
      {},
      h('a', {href: `#icicle/${place}`}, 'Show in the icicle'),
      run.timeline.text.length > 0 && [' · ', h('a', {href: `#timeline?marked=${place}`}, 'Show in the timeline')],
    ),
  ];
}

// Where the class of a module is defined.
function sourceOf(run, line) {
  const source = Object.values(line.rows).map(row => run.rows.source?.[row]).find(Boolean);
  return source && h('p', {class: 'hint'}, `${line.module} is defined in `, h('code', {}, source));
}

function crumbs(run, line) {
  const above = [];
  for (let at = line.parent; at >= 0; at = lineAt(run, at).parent) above.unshift(at);
  return h(
    'nav',
    {class: 'crumbs', 'aria-label': 'Parent layers'},
    h('a', {href: '#layers'}, 'Layers'),
    above.map(place => [' › ', h('a', {href: partLink(place)}, name(lineAt(run, place).label))]),
  );
}

function factTable(run, line, caption, facts) {
  const rows = Object.entries(line.rows);
  const present = facts.filter(
    one =>
      run.rows[one.name] &&
      rows.some(([, row]) => known(run.rows[one.name][row]) && !['', 0].includes(run.rows[one.name][row])),
  );
  return h(
    'div',
    {class: 'scroll', tabindex: '0', role: 'group', 'aria-label': caption},
    h(
      'table',
      {class: 'facts', 'aria-label': caption},
      h(
        'thead',
        {},
        h(
          'tr',
          {},
          h('td'),
          rows.map(([phase]) => h('th', {scope: 'col', class: 'number'}, h('span', {class: `key ${phase}`}, phase))),
        ),
      ),
      h(
        'tbody',
        {},
        present.map(one =>
          h(
            'tr',
            {},
            h('th', {scope: 'row', class: 'text'}, one.full || one.title),
            rows.map(([, row]) =>
              h(
                'td',
                {class: 'number'},
                known(run.rows[one.name][row]) ? SHOWS[one.unit](run.rows[one.name][row]) : '',
              ),
            ),
          ),
        ),
      ),
    ),
  );
}

function hasCounters(run, line) {
  return COLUMNS.counters.some(({name: key}) => Object.values(line.rows).some(row => known(run.rows[key]?.[row])));
}

function layerShare(run, line) {
  const whole = run.meta[run.time];
  return h(
    'ul',
    {class: 'shares'},
    Object.entries(line.rows).map(([phase, row]) => {
      const ns = run.rows[run.time][row];
      return (
        known(ns) &&
        h(
          'li',
          {},
          h('span', {class: 'what'}, phase),
          h(
            'span',
            {class: 'bar', 'aria-hidden': 'true'},
            withWidth(h('span', {class: inkOf(phase)}), (100 * ns) / (whole || 1)),
          ),
          h('span', {class: 'value'}, `${duration(ns)}, ${share(ns, whole)}`),
        )
      );
    }),
  );
}

function shapesOf(run, line) {
  const seen = Object.values(line.rows)
    .map(row => run.rows.shapes[row])
    .find(shapes => shapes.length);
  return (
    seen && [
      h('h3', {}, 'Input shapes, most frequent first'),
      h(
        'ol',
        {class: 'shapes'},
        seen.map(shape => h('li', {}, name(shape))),
      ),
    ]
  );
}

// The kernels of a layer, with those of its child layers added.
function kernelsOf(run, place) {
  if (!run.names.row.length) return null;
  const rows = new Map();
  for (const outer of membersOf(run, place))
    for (const one of subtree(run, outer))
      for (const [phase, row] of Object.entries(run.lines[one].rows)) rows.set(row, [phase, one === outer]);
  const sums = new Map();
  const {row, name: code, calls, gpu_ns, kind, tensor_cores} = run.names;
  for (let at = 0; at < row.length; at++) {
    const [phase, own] = rows.get(row[at]) ?? [];
    if (!phase) continue;
    const key = `${phase} ${code[at]}`;
    const sum = sums.get(key) ?? {
      phase,
      name: run.names.texts[code[at]],
      calls: 0,
      gpu_ns: 0,
      gpu_self_ns: 0,
      kind: kind[at],
      tensor_cores: tensor_cores[at],
    };
    sum.calls += calls[at];
    sum.gpu_ns += gpu_ns[at];
    if (own) sum.gpu_self_ns += gpu_ns[at];
    sums.set(key, sum);
  }
  const found = [...sums.values()];
  if (!found.length) return panel('Kernels', emptyText('No GPU activity belongs to this layer.'));
  const names = kernelNames(run),
    unit = unitFor(found.map(one => one.gpu_ns)),
    timed = value => inUnit(unit, value || null);
  const table = sortTable(
    'Kernels of the layer',
    [
      {title: 'Name', text: true, value: one => one.name, show: value => kernelName(names, value)},
      ...columnsOf('layer_kernels', found, {
        gpu_ns: {title: `${titleOf('layer_kernels', 'gpu_ns')} ${unit.name}`, show: timed},
        gpu_self_ns: {show: timed},
        mean_ns: {value: one => one.gpu_ns / one.calls, show: value => duration(Math.round(value))},
      }),
    ],
    found,
    {by: 'gpu_ns'},
  );
  return panel('Kernels, child layers included', wholeNames(table), table);
}

function layerSteps(run, line) {
  const table = run.layer_steps;
  if (table.kept < 2) return null;
  const inside = membersOf(run, line.place).flatMap(place => subtree(run, place)),
    rows = inside.flatMap(place => Object.entries(run.lines[place].rows)),
    self = run.time.replace('_ns', '_self_ns'),
    phaseOf = new Map(rows.map(([phase, row]) => [row, phase])),
    first = table.step[0] ?? 0;
  /** @type {[string, Float64Array][]} */
  const parts = [...new Set(phaseOf.values())].map(phase => [phase, new Float64Array(table.kept)]);
  for (let at = 0; at < table.row.length; at++) {
    const part = parts.find(([phase]) => phase === phaseOf.get(table.row[at]));
    if (part) part[1][table.step[at] - first] += table[self][at];
  }
  const some = parts.filter(([, values]) => values.some(Boolean));
  if (!some.length) return null;
  return panel('Time in each step', stepBars(`Time of ${title(line)} in each step`, some, first));
}

function childrenOf(run, place) {
  const children = placesInside(run, place);
  if (!children.length) return null;
  const {numbers} = withFolds(run, measured(run, {...NOTHING}), NOTHING);
  return panel('Child layers', timesTable(run, 'Child layers', children, numbers, child => lineAt(run, child).label));
}

// Layers and folds with their times.
function timesTable(run, caption, places, numbers, label) {
  const longest = Math.max(1, ...places.map(place => numbers[place].total ?? 0));
  return sortTable(
    caption,
    [
      {
        title: 'Layer',
        text: true,
        value: label,
        show: (value, place) => layerCell(run, place, value),
      },
      {title: 'Time', value: place => numbers[place].total, show: duration},
      {
        title: 'Forward and backward',
        class: 'bars',
        value: place => numbers[place].total,
        show: (_, place) => bars(numbers[place], longest),
      },
    ],
    places,
    {shown: LISTED},
  );
}

function layerAdvice(run, line) {
  const mine = records(run.advice).filter(
    one => one.layers.includes(title(line)),
  );
  return mine.length > 0 && panel('Advice', adviceList(run, mine));
}

function adviceList(run, found) {
  const whole = run.meta.steps ? 'step' : 'run';
  return h(
    'ol',
    {class: 'advice'},
    found.map(one =>
      h(
        'li',
        {},
        h('strong', {}, one.advice),
        h('p', {}, one.saves >= 0.9995 ? `Saves an unknown part of the ${whole}.` : one.saves ? `Saves at most ${percent(one.saves)} of the ${whole}.` : 'Saves no time by itself.'),
        h('p', {}, `${one.evidence}.`),
        whereText(run, one.layers, 8),
        h('pre', {tabindex: '0'}, h('code', {}, one.code)),
      ),
    ),
  );
}

// The layers that advice is about, those of a fold as one: at most `most`, and how many more there are.
function whereText(run, layers, most) {
  const found = new Map();
  for (const layer of layers) {
    const line = run.lines.find(other => title(other) === layer && !other.other),
      place = line ? foldedPlace(run, line.place) : layer;
    found.set(place, [...(found.get(place) ?? []), line?.place]);
  }
  const links = [...found].map(([place, members]) => {
    if (typeof place === 'string') return pathName(place);
    return layerLink(run, members.length > 1 ? place : members[0]);
  });
  const more = links.length - most;
  return (
    links.length > 0 &&
    h(
      'p',
      {class: 'where'},
      'Where: ',
      links.slice(0, most).map((link, at) => [at ? ', ' : '', link]),
      more > 0 && ` and ${count(more)} more`,
    )
  );
}

// A link to a layer. A number does not say what the layer is, so its class follows.
function layerLink(run, place) {
  const line = lineAt(run, place),
    bare = /^(.*[./])?[\d*]+$/.test(title(line));
  return [
    h('a', {href: partLink(place)}, pathName(title(line))),
    bare && line.module && [' ', name(line.module, 'module')],
    foldSize(line),
  ];
}
