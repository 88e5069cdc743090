// The views for roofline, steps, kernels, ranks and other tables.
import {remember} from './address.js';
import {choiceOf, emptyView, filterForm, notesPanel, panel, searchField, wholeNames} from './blocks.js';
import {debounce, h} from './dom.js';
import {chartPanel} from './drawing.js';
import {foldedRows, layerCell, perStep} from './elements.js';
import {kernelName, kernelNames} from './kernel.js';
import {deviceOf, records} from './model.js';
import {lineAt} from './places.js';
import {barColumn, COLUMNS, columnsOf, LAYER, LISTED, sortTable} from './table.js';
import {count, plural} from './units.js';

export function rooflineView(run) {
  const names = COLUMNS.roofline.map(column => column.name),
    pick = (table, at) => Object.fromEntries(names.map(key => [key, table[key]?.[at]]));
  const lines = run.lines.flatMap(({place, rows}) =>
    Object.entries(rows).map(([phase, row]) => ({place, ...pick(run.rows, row), phase})),
  );
  const folds = run.roofline_folds.place.map((place, at) => ({place, ...pick(run.roofline_folds, at)})),
    points = [...lines, ...folds].filter(({intensity, flops_per_s}) => intensity > 0 && flops_per_s > 0),
    missing = 'The profile has no shapes, so that FLOPs are unknown. Use emit_ranges(model, shapes=True).';
  if (!points.length) return emptyView('Roofline', missing);
  const {shown, inside} = foldedRows(run, points),
    value = ({place}) => lineAt(run, place).title,
    layer = {title: 'Layer', text: true, value, show: (_, {place}) => layerCell(run, place)},
    columns = [layer, ...columnsOf('roofline', points)];
  return [
    h('h1', 'Roofline'),
    h('p.status', `Peaks: ${run.texts.peaks}`),
    run.charts.roofline.map(chartPanel),
    sortTable('Layers in the roofline', columns, shown, {by: 'time_ns', shown: LISTED, inside}),
  ];
}

export function stepsView(run) {
  const rows = records(run.steps);
  if (!rows.length) return emptyView('Steps', run.texts.steps);
  return [h('h1', 'Steps'), h('p.status', run.texts.steps), run.charts.steps.map(chartPanel), stepTable(run, rows)];
}

function stepTable(run, rows) {
  const processes = [...new Set(rows.map(row => row.process))];
  const columns = columnsOf('steps', rows, {
    process: processes.length > 1 && {value: row => processes.indexOf(row.process) + 1},
    gpu_ns: run.time === 'gpu_ns' && {},
  });
  const show = (value, {warmup}) => `${count(value)}${warmup ? ' (warm-up)' : ''}`;
  return sortTable('Steps', [{title: 'Step', value: ({step}) => step, show}, ...columns], rows);
}

export function kernelsView(run, state) {
  const rows = records(run.kernels);
  if (!rows.length) return emptyView('Kernels', 'No GPU activity was recorded.');
  const classes = records(run.classes),
    kinds = [...new Set(classes.map(({kind}) => kind))],
    holder = h('div'),
    filter = (state.kernels ??= {search: '', kind: ''});
  const draw = () => {
    holder.replaceChildren(...kernelTable(run, rows, filter));
    remember();
  };
  const set = (key, value) => {
    filter[key] = value;
    debounce(draw);
  };
  draw();
  const form = filterForm(
    searchField(filter.search, value => set('search', value)),
    choiceOf('Kind', 'kind', 'All kinds', kinds, filter.kind, value => set('kind', value)),
    wholeNames(holder),
  );
  return [
    h('h1', 'Kernels'),
    perStep(run),
    panel('Kernels by kind', classTable(classes, run.meta.gpu_ns)),
    panel('Kernels by name', form, holder),
  ];
}

function kernelTable(run, rows, {kind, search}) {
  const matches = row =>
    (!kind || row.kind === kind) && `${row.name} ${row.short}`.toLowerCase().includes(search.toLowerCase());
  const some = rows.filter(matches),
    cut = rows.length < run.kernels.total ? '; the page has the longest only' : '',
    show = (_, row) => kernelName(kernelNames(run), row.name),
    others = columnsOf('kernels', rows, {...shareOf(run.meta.gpu_ns), calls: {class: 'minor'}}),
    columns = [{title: 'Name', text: true, value: row => row.short, show}, ...others];
  return [
    h('p.status', {role: 'status'}, `${plural(some.length, 'name')} of ${count(run.kernels.total)}${cut}`),
    sortTable('Kernels', columns, some, {by: 'gpu_ns'}),
  ];
}

function classTable(classes, whole) {
  const time = ({gpu_ns}) => gpu_ns;
  const columns = [
    {title: 'Kind', text: true, value: ({kind}) => kind},
    barColumn('Relative', time, row => [['other', time(row)]], classes),
    ...columnsOf('kinds', classes, shareOf(whole)),
  ];
  return sortTable('Kinds of kernels', columns, classes, {by: 'gpu_ns'});
}

// The column with the share of the GPU time.
function shareOf(whole) {
  return {main_ns: {value: row => (whole ? row.gpu_ns / whole : null)}};
}

// A table without a view of its own, such as one of another package.
export function moreView(run, place) {
  const {heading, columns, rows} = run.more[place],
    table = records(rows);
  COLUMNS[heading] = columns;
  return [
    h('h1', heading),
    perStep(run),
    sortTable(heading, columnsOf(heading, table, {layer: {value: LAYER.value, show: LAYER.show}}), table),
  ];
}

export function ranksView({ranks: {across, each, time, notes, cut, verdict}}) {
  const layers = records(across),
    ranks = each.map(rank => ({...rank, step: rank.step_ns?.mean}));
  const columns = columnsOf('across', layers, {
    spread_share: {value: row => (row.median_ns ? row.spread_ns / row.median_ns : null)},
    collective_median_ns: {value: row => row.collective_median_ns || null},
  });
  const byLayer = sortTable('Layers across ranks', [LAYER, ...columns], layers, {by: 'median_ns'});
  return [
    h('h1', 'Ranks'),
    cut && h('p.cut', cut),
    verdict && h('p', h('strong', verdict)),
    panel('Each rank', sortTable('Ranks', columnsOf('ranks', ranks), ranks)),
    panel(`${deviceOf(time)} time by layer, with the slowest rank`, byLayer),
    notesPanel('Notes', notes),
  ];
}
