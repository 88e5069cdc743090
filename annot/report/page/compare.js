// Comparison of two runs: speedups and slowdowns with their confidence intervals.
import {CHANGES, remember} from './address.js';
import {bar, cards, choice, choiceOf, field, filterForm, notesPanel, searchField} from './blocks.js';
import {debounce, h, name, pathName} from './dom.js';
import {foldSize} from './elements.js';
import {kernelName, shortNames} from './kernel.js';
import {grouped, records, sumKnown} from './model.js';
import {columnsOf, LISTED, sorted, sortTable, titleOf} from './table.js';
import {count, fixed, inUnit, instant, known, plural, unitFor} from './units.js';

// The subjects of comparisons: their name, and the label of a row.
/** @type {Object<string, [string, (row: any) => string]>} */
const SUBJECTS = {
  layer: ['Layer', row => row.group_label ?? row.label],
  module: ['Module class', row => row.module],
  phase: ['Phase', row => row.phase],
  kind: ['Kind of kernel', row => row.kind],
  kernel: ['Kernel', row => row.name],
};
// What a comparison shows, in the order of CHANGES: the words, and the rows.
/** @type {[string, (row: any) => boolean][]} */
const SHOWN = [
  ['Changes at their place', row => !row.explained],
  ['All rows', () => true],
  ['Slower in B', row => row.difference_ns > 0],
  ['Faster in B', row => row.difference_ns < 0],
  ['Only in A or B', row => known(row.only_in) && !row.fused],
];

export function comparisonView(data, state) {
  const filters = (state.comparison ??= {by: data.by, search: '', phase: '', only: CHANGES[0]}),
    holder = h('div');
  const draw = () => {
    holder.replaceChildren(...comparisonTable(data, filters));
    remember();
  };
  draw();
  const set = key => value => {
    filters[key] = value;
    debounce(draw);
  };
  const subjects = Object.keys(data.tables).map(key => [key, SUBJECTS[key][0]]),
    changes = CHANGES.map((key, at) => [key, SHOWN[at][0]]),
    phases = [...new Set(data.tables[data.by].phase ?? [])],
    sides = data.cards.map(([term, value, names, text]) => [term, value, names.map(one => name(one)), text]);
  return [
    h('h1', 'Comparison'),
    cards(sides),
    notesPanel('Not comparable', data.reasons),
    notesPanel('Why B takes longer', data.causes),
    notesPanel('Not known', data.reservations),
    notesPanel('Other differences', data.notes),
    filterForm(
      field('By', choice('by', subjects, filters.by, set('by'))),
      searchField(filters.search, set('search')),
      phases.length > 1 && choiceOf('Phase', 'phase', 'All phases', phases, filters.phase, set('phase')),
      field('Show', choice('only', changes, filters.only, set('only'))),
    ),
    holder,
  ];
}

function ratio(value) {
  return known(value) ? fixed(value, 3) : '';
}

function comparisonTable(data, filters) {
  const {by, only, phase, search} = filters,
    rows = records(data.tables[by]).map(row => ({...row, members: []})),
    [, label] = SUBJECTS[by],
    [, isShown] = SHOWN[CHANGES.indexOf(only)],
    needle = search.trim().toLowerCase();
  const matches = rows.filter(
    row =>
      isShown(row) &&
      (!phase || !('phase' in row) || row.phase === phase) &&
      `${label(row)} ${row.module ?? ''}`.toLowerCase().includes(needle),
  );
  const shown = by === 'layer' ? foldedChanges(matches) : matches,
    inside = shown.some(row => row.members.length) ? row => row.members : undefined,
    explained = rows.filter(row => row.explained).length,
    left = only === CHANGES[0] && explained > 0,
    out = left ? `. Left out: ${plural(explained, 'layer')} whose change other rows explain.` : '',
    status = `${plural(matches.length, 'row')} of ${count(rows.length)}, largest slowdown first${out}`;
  const columns = comparisonColumns(data, by, rows, shown);
  return [
    h('p.status', {role: 'status'}, status),
    sortTable(`Comparison by ${by}`, columns, shown, {shown: by === 'layer' ? LISTED : undefined, inside}),
  ];
}

function comparisonColumns(data, by, rows, shown) {
  const names = shortNames(data.kernels),
    unit = unitFor(rows.flatMap(row => [row.a_ns, row.b_ns])),
    longest = Math.max(1, ...[...rows, ...shown].map(row => Math.abs(row.difference_ns)));
  const timed = key => ({title: `${titleOf('compared', key)} ${unit.name}`, show: value => inUnit(unit, value)});
  const numbers = columnsOf('compared', rows, {
    phase: (by === 'layer' || by === 'module') && {},
    a_ns: timed('a_ns'),
    b_ns: timed('b_ns'),
    difference_ns: {...timed('difference_ns'), class: 'signed'},
    speedup: {
      value: row => row.speedup ?? row.only_in,
      show: (_, row) => (row.only_in ? `only ${row.only_in.toUpperCase()}` : ratio(row.speedup)),
    },
    uncertainty: {
      title: 'CI',
      help: 'Confidence interval of the speedup',
      value: row => row.speedup_low,
      show: (value, row) => (known(value) ? `${ratio(value)} to ${ratio(row.speedup_high)}` : ''),
    },
    kernels_gone: by === 'layer' && {
      class: 'changes',
      value: row => [...row.kernels_gone, ...row.kernels_new].join(' '),
      show: (_, row) => changes(row, names),
    },
  });
  const first = {title: by[0].toUpperCase() + by.slice(1), text: true, value: SUBJECTS[by][1]},
    named = by === 'kernel' ? text => kernelName(names, text) : name,
    show = by === 'layer' ? layerCell : text => [named(text), ' '],
    bars = {
      title: 'Faster | slower',
      class: 'bars minor',
      value: row => row.difference_ns,
      show: value => difference(value, longest),
    },
    at = numbers.findIndex(column => column.name === 'difference_ns') + 1;
  return [{...first, show}, ...numbers.slice(0, at), bars, ...numbers.slice(at)];
}

function layerCell(text, row) {
  const largest = name(largestChange(row), 'module largest');
  return [pathName(text), ' ', name(row.remark, 'module'), foldSize(row), ' ', largest];
}

// Rows with those of repeated layers as one for each phase, at the place of the first: their sums.
function foldedChanges(rows) {
  const folds = grouped(rows, row => (row.group ? JSON.stringify([row.group, row.remark, row.phase]) : row));
  const shown = [...folds.values()].map(members => (members.length < 2 ? members[0] : foldOfChanges(members)));
  return sorted(shown, row => row.difference_ns, true);
}

function foldOfChanges(members) {
  const sum = key => sumKnown(members.map(row => row[key])),
    union = key => [...new Set(members.flatMap(row => row[key]))],
    [first] = members,
    [a_ns, b_ns] = [sum('a_ns'), sum('b_ns')];
  return {
    ...{group: first.group, remark: first.remark, phase: first.phase, group_label: first.group, members, a_ns, b_ns},
    difference_ns: sum('difference_ns'),
    speedup: a_ns && b_ns ? a_ns / b_ns : null,
    share: sum('share'),
    only_in: members.every(row => row.only_in === first.only_in) ? first.only_in : null,
    kernels_gone: union('kernels_gone'),
    kernels_new: union('kernels_new'),
  };
}

// The layer of a fold that changed most, so that its sum does not hide it.
function largestChange({members}) {
  if (!members.length) return '';
  const [first] = sorted(members, row => Math.abs(row.difference_ns), true),
    sign = first.difference_ns > 0 ? '+' : '−';
  return `most: ${first.label} ${sign}${instant(Math.abs(first.difference_ns))}`;
}

// A bar to the right if B is slower, to the left if B is faster.
function difference(ns, longest) {
  const side = ns > 0 ? 'slower' : 'faster';
  return bar([[side, Math.abs(ns)]], 2 * longest, `bar both ${side}`);
}

function changes({kernels_gone, kernels_new}, names) {
  const lists = Object.entries({'−': kernels_gone, '+': kernels_new});
  const lines = lists.flatMap(([sign, kernels]) =>
    kernels.slice(0, 2).map(kernel => h('div.change', `${sign} `, kernelName(names, kernel))),
  );
  const more = lists.reduce((sum, [, kernels]) => sum + Math.max(0, kernels.length - 2), 0);
  return [lines, more > 0 && h('div.hint', `${more} more`)];
}
