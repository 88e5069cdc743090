// Comparison of two runs: speedups and slowdowns with their confidence intervals.

function comparisonView(data, state) {
  const one = (state.comparison ??= {by: data.by, search: '', phase: '', only: 'place'});
  const holder = h('div'),
    draw = () => {
      holder.replaceChildren(...comparisonTable(data, one));
      remember();
    };
  draw();
  const words = {layer: 'Layer', module: 'Module class', phase: 'Phase', class: 'Kind of kernel', kernel: 'Kernel'};
  const phases = [...new Set(data.tables[data.by].phase ?? [])];
  const set = (key, value) => {
    one[key] = value;
    debounce(draw);
  };
  return [
    h('h1', {}, 'Comparison'),
    sides(data),
    differences('Not comparable', data.reasons),
    differences('Other differences', data.notes),
    h(
      'form',
      {class: 'filters', role: 'search', onsubmit: event => event.preventDefault()},
      field(
        'By',
        choice(
          'by',
          Object.keys(data.tables).map(key => [key, words[key]]),
          one.by,
          value => set('by', value),
        ),
      ),
      field(
        'Search',
        h('input', {
          type: 'search',
          id: 'search',
          value: one.search,
          'aria-keyshortcuts': '/',
          oninput: event => set('search', event.target.value),
        }),
      ),
      phases.length > 1 &&
        field(
          'Phase',
          choice('phase', [['', 'All phases'], ...phases.map(phase => [phase, phase])], one.phase, value =>
            set('phase', value),
          ),
        ),
      field(
        'Show',
        choice(
          'only',
          [
            ['place', 'Changes at their place'],
            ['all', 'All rows'],
            ['slower', 'Slower in B'],
            ['faster', 'Faster in B'],
            ['alone', 'Only in A or B'],
          ],
          one.only,
          value => set('only', value),
        ),
      ),
    ),
    holder,
  ];
}

function differences(heading, texts) {
  return (
    texts.length > 0 &&
    panel(
      heading,
      h(
        'ul',
        {class: 'notes'},
        texts.map(one => h('li', {}, one.charAt(0).toUpperCase() + one.slice(1))),
      ),
    )
  );
}

// The wall-clock time of a step, which includes idle time of the GPU.
function clock(data, side) {
  const time = data.step_time?.[side];
  return known(time) && `step time ${duration(Math.round(time))} (wall clock)`;
}

function sides(data) {
  const {whole, steps} = data,
    per = steps ? 'per step' : 'in total',
    what = data.time === 'gpu_ns' ? 'GPU' : 'host';
  const card = (letter, side, place) =>
    h(
      'div',
      {class: 'card'},
      h('dt', {}, `${letter}: ${what} time ${per}`),
      h(
        'dd',
        {},
        known(whole[side]) ? duration(Math.round(whole[side])) : '—',
        h(
          'small',
          {},
          name(data.names[place]),
          name(data.devices[place]),
          [steps && plural(steps[place], 'step'), clock(data, side)].filter(Boolean).join(', '),
        ),
      ),
    );
  const ratio = known(whole.speedup) && data.same_program ? `${fixed(whole.speedup, 3)} ×` : '—';
  return h(
    'dl',
    {class: 'cards'},
    card('A', 'a_ns', 0),
    card('B', 'b_ns', 1),
    h(
      'div',
      {class: 'card'},
      h('dt', {}, 'Speedup of B'),
      h(
        'dd',
        {},
        ratio,
        h(
          'small',
          {},
          known(whole.speedup_low)
            ? `95% confidence interval: ${fixed(whole.speedup_low, 3)} to ${fixed(whole.speedup_high, 3)}`
            : 'Above 1: B is faster.',
        ),
      ),
    ),
  );
}

// The rows that a comparison shows, by the value of "Show".
const COMPARED = {
  place: row => !row.explained,
  all: () => true,
  slower: row => row.difference_ns > 0,
  faster: row => row.difference_ns < 0,
  alone: row => known(row.only_in) && !row.fused,
};

function comparisonTable(data, one) {
  const {by} = one,
    rows = recordsOfChanges(data.tables[by]),
    names = shortNames(data.kernels),
    needle = one.search.trim().toLowerCase();
  const label_ = row =>
    ({
      layer: () => row.group_label ?? row.label,
      module: () => row.module,
      phase: () => row.phase,
      class: () => row.class,
      kernel: () => row.name,
    })[by]();
  const found = rows.filter(
    row =>
      COMPARED[one.only](row) &&
      (!one.phase || !('phase' in row) || row.phase === one.phase) &&
      `${label_(row)} ${row.module ?? ''}`.toLowerCase().includes(needle),
  );
  const shown = by === 'layer' ? foldedChanges(found) : found;
  const unit = unitFor(rows.flatMap(row => [row.a_ns, row.b_ns])),
    longest = Math.max(1, ...[...rows, ...shown].map(row => Math.abs(row.difference_ns)));
  const timed = key => ({title: `${titleOf('compared', key)} ${unit.name}`, show: value => inUnit(unit, value)});
  const numbers = columnsOf('compared', rows, {
    phase: (by === 'layer' || by === 'module') && {},
    a_ns: timed('a_ns'),
    b_ns: timed('b_ns'),
    difference_ns: {...timed('difference_ns'), class: 'signed'},
    speedup: {
      value: row => row.speedup ?? row.only_in,
      show: (_, row) =>
        row.only_in ? `only ${row.only_in.toUpperCase()}` : known(row.speedup) ? fixed(row.speedup, 3) : '',
    },
    uncertainty: {
      title: '95% CI',
      help: '95% confidence interval of the speedup',
      value: row => row.speedup_low,
      show: (value, row) => (known(value) ? `${fixed(value, 3)} to ${fixed(row.speedup_high, 3)}` : ''),
    },
    kernels_gone: by === 'layer' && {
      class: 'changes',
      value: row => [...row.kernels_gone, ...row.kernels_new].join(' '),
      show: (_, row) => changes(row, names),
    },
  });
  const bar = numbers.findIndex(column => column.name === 'difference_ns') + 1;
  const columns = [
    {
      title: by[0].toUpperCase() + by.slice(1),
      text: true,
      value: label_,
      show: (value, row) => [
        by === 'layer' ? pathName(value) : by === 'kernel' ? kernelName(names, value) : name(value),
        ' ',
        by === 'layer' && [name(row.remark, 'module'), foldSize(row), ' ', name(largestChange(row), 'module largest')],
      ],
    },
    ...numbers.slice(0, bar),
    {
      title: 'Faster | slower',
      class: 'bars minor',
      value: row => row.difference_ns,
      show: value => difference(value, longest),
    },
    ...numbers.slice(bar),
  ];
  return [
    h(
      'p',
      {class: 'status', role: 'status'},
      `${plural(found.length, 'row')} of ${count(rows.length)}, largest slowdown first${leftOut(one, rows)}`,
    ),
    sortTable(`Comparison by ${by}`, columns, shown, {
      shown: by === 'layer' ? LISTED : SHOWN,
      inside: shown.some(row => row.members.length) ? row => row.members : undefined,
    }),
  ];
}

/** @returns {any[]} */
function recordsOfChanges(table) {
  return records(table).map(row => ({...row, members: []}));
}

// Rows with those of repeated layers as one for each phase, at the place of the first: their sums.
function foldedChanges(rows) {
  const folds = new Map(),
    keyOf_ = row => JSON.stringify([row.group, row.remark, row.phase]);
  for (const row of rows) if (row.group) folds.set(keyOf_(row), [...(folds.get(keyOf_(row)) ?? []), row]);
  const shown = new Set(
    rows.map(row => {
      const members = folds.get(keyOf_(row)) ?? [];
      if (members.length < 2) return row;
      members.fold ??= foldOfChanges(members);
      return members.fold;
    }),
  );
  return sorted([...shown], row => row.difference_ns, true);
}

function foldOfChanges(members) {
  const sum = key => sumKnown(members.map(row => row[key])),
    [a_ns, b_ns] = [sum('a_ns'), sum('b_ns')],
    only = members[0].only_in;
  const own = Object.fromEntries(Object.keys(members[0]).map(key => [key, null]));
  return {
    ...own,
    ...Object.fromEntries(['group', 'remark', 'phase'].map(key => [key, members[0][key]])),
    group_label: members[0].group,
    members,
    a_ns,
    b_ns,
    difference_ns: sum('difference_ns'),
    speedup: a_ns && b_ns ? a_ns / b_ns : null,
    share: sum('share'),
    only_in: members.every(row => row.only_in === only) ? only : null,
    kernels_gone: [...new Set(members.flatMap(row => row.kernels_gone))],
    kernels_new: [...new Set(members.flatMap(row => row.kernels_new))],
  };
}

// The layer of a fold that changed most, so that its sum does not hide it.
function largestChange({members}) {
  if (!members.length) return '';
  const [first] = sorted(members, row => Math.abs(row.difference_ns), true),
    sign = first.difference_ns > 0 ? '+' : '−';
  return `most: ${first.label} ${sign}${duration(Math.round(Math.abs(first.difference_ns)))}`;
}

// Says that layers are left out whose change other rows explain.
function leftOut(one, rows) {
  const explained = rows.filter(row => row.explained).length;
  return one.only === 'place' && explained
    ? `. Left out: ${plural(explained, 'layer')} whose change other rows explain.`
    : '';
}

// A bar to the right if B is slower, to the left if B is faster.
function difference(ns, longest) {
  const side = ns > 0 ? 'slower' : 'faster',
    bar = withWidth(h('span', {class: side}), (50 * Math.abs(ns)) / longest);
  return h('div', {class: `bar both ${side}`, 'aria-hidden': 'true'}, ns ? bar : null);
}

function changes(row, names) {
  const named = (sign, texts) =>
    texts.slice(0, 2).map(one => h('div', {class: 'change'}, `${sign} `, kernelName(names, one)));
  const more = Math.max(0, row.kernels_gone.length - 2) + Math.max(0, row.kernels_new.length - 2);
  return [
    named('−', row.kernels_gone),
    named('+', row.kernels_new),
    more > 0 && h('div', {class: 'hint'}, `${more} more`),
  ];
}
