// The layer tree: bars by phase, sorting among siblings, search, filters, arrow keys.
import {keptSort, placesOf, placesText, remember, UNFOLDED} from './address.js';
import {colorKey, bar, button, choice, choiceOf, field, filterForm, hint, searchField, showAll} from './blocks.js';
import {actOnKey, debounce, h, name} from './dom.js';
import {layerHref, perStep} from './elements.js';
import {deviceOf, INKS, measured, modulesIn, partsOf, PHASES, phasesIn, stepRange} from './model.js';
import {foldedInside, isFold, lineAt, matchesAndAround, membersOf, placesInside} from './places.js';
import {cellClass, columnsOf, headRow, LISTED, sorted, titleOf} from './table.js';
import {count, inUnit, known, plural, share, unitFor} from './units.js';

const LINES = 1000;

export function layersView(run, state) {
  const tree = (state.tree ??= {table: 'Layers', initial: initiallyOpen(run), filtered: false, all: false, focus: -1});
  unfold(run, tree, (state.unfolded ??= {...UNFOLDED}));
  const holder = h('div.scroll.wide'),
    status = h('p.status', {role: 'status'});
  const draw = () => {
    drawTree({run, state, tree, holder, status, draw});
    Object.assign(state.unfolded, {
      lines: placesText(unlike(tree.open, tree.initial)),
      listed: placesText(tree.single),
      every: placesText(tree.every),
      folded: placesText(tree.folded),
    });
    remember();
  };
  draw();
  return [
    h('h1', 'Layers'),
    perStep(run),
    filterForm(layerFilters(run, state, draw)),
    status,
    holder,
    hint('Arrow keys: move, fold and unfold. Enter: open the layer, or list repeated layers. /: search.'),
  ];
}

// Unfolds the lines that the URL says.
function unfold(run, tree, {lines, listed, every, folded}) {
  const places = text => placesOf(text, run.places.length);
  Object.assign(tree, {open: unlike(tree.initial, places(lines)), single: places(listed), every: places(every)});
  tree.folded = places(folded);
}

// The symmetric difference of two sets.
function unlike(one, other) {
  return new Set([...[...one].filter(place => !other.has(place)), ...[...other].filter(place => !one.has(place))]);
}

// The lines that are unfolded at first: all of a small model, the upper levels of a large one.
function initiallyOpen(run) {
  const all = foldedInside(run, -1),
    deepest = all.length <= 300 ? Infinity : 2,
    level = place => run.rows.level[Object.values(run.lines[membersOf(run, place)[0]].rows)[0]]; // -1: around layers
  return new Set(all.filter(place => level(place) < deepest));
}

// The fields that filter the layers of the tree and the icicle.
export function layerFilters(run, state, draw) {
  const {filters} = state,
    modules = modulesIn(run);
  const set = key => value => {
    filters[key] = value;
    state.tree?.folded.clear();
    debounce(draw);
  };
  const times = Object.entries({gpu_ns: 'GPU', host_ns: 'Host'});
  return [
    searchField(filters.search, set('search'), {
      placeholder: 'Path or class',
      autocomplete: 'off',
      spellcheck: 'false',
    }),
    choiceOf('Phase', 'phase', 'All phases', phasesIn(run), filters.phase, set('phase')),
    modules.length > 0 && choiceOf('Class', 'module', 'All classes', modules, filters.module, set('module')),
    run.layer_steps.steps > 0 && field('Steps', stepsInput(run, filters, draw)),
    run.time === 'gpu_ns' &&
      run.meta.host_ns !== null &&
      field('Time', choice('time', times, filters.time || run.time, set('time'))),
  ];
}

function stepsInput(run, filters, draw) {
  const oninput = event => {
    const wrong = stepRange(event.target.value, run.layer_steps.steps) === undefined;
    event.target.setAttribute('aria-invalid', wrong);
    if (wrong) return;
    filters.steps = event.target.value;
    debounce(draw);
  };
  const title = 'Steps to include, such as 7 or 3:20 (without step 20). Empty: the whole profile.',
    placeholder = `0:${run.layer_steps.kept}`;
  return h('input', {id: 'steps', size: 7, placeholder, value: filters.steps, inputmode: 'numeric', title, oninput});
}

function treeColumns(run, {numbers, time, whole}) {
  const present = key => numbers.some(one => known(one[key])),
    device = time === 'gpu_ns';
  const inUnitOf = key => {
    const unit = unitFor(numbers.map(one => one[key]));
    return {unit, timed: {show: value => inUnit(unit, value)}};
  };
  const named = (key, {unit, timed}) => ({title: `${titleOf('tree', key)} ${unit.name}`, ...timed}),
    {unit, timed} = inUnitOf('total'),
    each = inUnitOf('slowest');
  const columns = columnsOf('tree', numbers, {
    ...Object.fromEntries(PHASES.map(phase => [phase, present(phase) && timed])),
    total: timed,
    self: timed,
    share: {value: one => one.total, show: value => share(value, whole)},
    median: named('median', each),
    slowest: named('slowest', each),
    index: {text: false},
    iqr: named('iqr', each),
    calls: present('calls') && {},
    kernels: run.time === 'gpu_ns' && present('kernels') && {show: value => count(value || null)},
    host: device && present('host') && named('host', inUnitOf('host')),
  });
  return {columns, unit};
}

function drawTree(view) {
  const {run, state, tree, holder, status, draw} = view,
    measures = measured(run, state.filters),
    {numbers} = measures,
    {columns, unit} = treeColumns(run, measures);
  const all = [
    {title: 'Layer', text: true, value: place => lineAt(run, place).title},
    ...columns.map(column => ({...column, value: place => column.value(numbers[place]), class: `col-${column.name}`})),
  ];
  Object.assign(tree, keptSort(tree.table, all));
  const {places, around, cut} = visible(run, state.filters, tree, numbers, all[tree.by]?.value);
  if (!places.includes(tree.focus)) tree.focus = places[0] ?? -1;
  const layers = numbers.filter((one, place) => !lineAt(run, place).other && one.total),
    longest = Math.max(1, ...(layers.length ? layers : numbers).map(one => one.total ?? 0)),
    part = tree.all ? places : places.slice(0, LINES),
    context = {...view, numbers, columns: all, longest, around};
  const head = headRow(all, tree, draw);
  head.children[0].after(h('th.bars', {scope: 'col'}, legend(numbers)));
  const rows = part.map((place, row) => [
    treeRow(place, context, part[row - 1]),
    cut.filter(({last}) => last === place).map(fold => cutRow(fold, context)),
  ]);
  const keys = {role: 'treegrid', 'aria-label': 'Layers', onkeydown: event => treeKeyPressed(event, context)},
    showLines = () => ((tree.all = true), draw()),
    more = part.length < places.length && showAll(count(places.length), 'lines', showLines);
  holder.replaceChildren(h('table.tree', keys, h('thead', head), h('tbody', rows)), more || '');
  status.textContent = treeStatus(run, measures, unit);
}

function treeStatus(run, {numbers, time}, unit) {
  if (!run.lines.length) return 'No layers were recorded. Use emit_ranges(model).';
  const {kept, steps} = run.layer_steps,
    matches = run.lines.filter(({place}) => numbers[place].matches).length,
    some = kept < steps ? `; the page has the first ${count(kept)} steps` : '';
  return `${deviceOf(time)} time in ${unit.name}, ${plural(matches, 'line')} of ${count(run.lines.length)}${some}`;
}

function legend(numbers) {
  const parts = numbers.filter(one => one.total).flatMap(partsOf),
    looks = new Set(parts.map(([look]) => look)),
    keys = INKS.filter(key => looks.has(key) || numbers.some(one => known(one[key])));
  return keys.map(key => colorKey(key));
}

// The visible lines in order: lines that match and their parents, without folded ones. `around` has their depths and
// parents: a layer that is listed in a fold is a level deeper than in its model. `cut` has the folds that list only their
// first layers, with the last line of these.
function visible(run, filters, tree, numbers, value) {
  tree.filtered = Boolean(filters.search.trim() || filters.module || filters.phase);
  const needed = matchesAndAround(run, numbers),
    places = [],
    cut = [],
    around = new Map();
  const visit = (inside, parent, listed) => {
    const some = inside.filter(place => needed.has(place)),
      ordered = value ? sorted(some, value, tree.down) : some,
      whole = !listed || tree.every.has(parent) || some.length <= LISTED,
      depth = parent < 0 ? 0 : around.get(parent).depth + 1;
    for (const place of whole ? ordered : ordered.slice(0, LISTED)) {
      places.push(place);
      around.set(place, {parent, depth});
      const single = isOpen(tree, place) && isSingle(run, tree, numbers, needed, place);
      if (isOpen(tree, place)) visit(placesInside(run, place, single), place, single);
    }
    if (!whole) cut.push({fold: parent, last: places.at(-1), number: some.length, depth});
  };
  visit(placesInside(run, -1), -1, false);
  return {places, around, cut};
}

// Whether a fold lists its members: if the user says so, or if only single members match.
function isSingle(run, tree, numbers, needed, place) {
  if (!isFold(run, place)) return false;
  const some = at => numbers[at].matches || placesInside(run, at).some(some);
  return tree.single.has(place) || (tree.filtered && needed.has(place) && !some(place));
}

// The first cell of a row, indented by its depth.
function labelCell(depth, ...children) {
  const label = h('div.label', children);
  label.style.setProperty('--depth', String(Math.min(depth, 12)));
  return label;
}

// The row that ends the first layers of a fold, with a button that shows all.
function cutRow({fold, number, depth}, {tree, columns, draw}) {
  const more = showAll(count(number), 'layers', () => (tree.every.add(fold), draw())),
    label = labelCell(depth, h('span.fold'), more);
  return h('tr', {role: 'row'}, h('td.text', {role: 'gridcell', colspan: columns.length + 1}, label));
}

function treeRow(place, context, before) {
  const {run, numbers, columns, longest, tree, around} = context,
    line = lineAt(run, place),
    {depth} = around.get(place),
    inner = hasInside(run, tree, place),
    gap = line.other && before !== undefined && !lineAt(run, before).other ? ' gap' : '';
  const attributes = {
    role: 'row',
    'data-place': place,
    'aria-level': depth + 1,
    'aria-expanded': inner ? String(isOpen(tree, place)) : null,
    tabindex: tree.focus === place ? '0' : '-1',
    class: (numbers[place].matches ? '' : 'context') + gap,
    onfocus: () => (tree.focus = place),
  };
  const cells = columns.slice(1).map(column => {
    const text = column.show(column.value(place));
    return h('td', {role: 'gridcell', class: cellClass(column)}, text);
  });
  return h(
    'tr',
    attributes,
    h('th.text', {scope: 'row', role: 'rowheader'}, treeLabel(place, context, inner)),
    h('td.bars', {role: 'gridcell'}, bar(partsOf(numbers[place]), longest)),
    cells,
  );
}

function treeLabel(place, {run, tree, draw, around}, inner) {
  const line = lineAt(run, place),
    {depth, parent} = around.get(place),
    flip = () => (toggle(tree, place), draw()),
    hidden = {class: 'fold', tabindex: '-1', 'aria-hidden': 'true'};
  return labelCell(
    depth,
    inner ? button(isOpen(tree, place) ? '▾' : '▸', flip, hidden) : h('span.fold'),
    isFold(run, place)
      ? foldLabel(line, tree, draw)
      : h('a', {href: layerHref(place), tabindex: '-1'}, name(isFold(run, parent) ? line.title : line.label)),
    line.module && name(line.module, 'module'),
    line.count && h('a.count', {href: layerHref(place), title: 'Times of the repeated layers'}, line.count),
  );
}

// Whether there are lines inside. A fold whose layers have none lists them.
function hasInside(run, tree, place) {
  return placesInside(run, place, tree.single.has(place)).length > 0;
}

// The label of a fold: a button that lists its layers separately, or sums them up again.
function foldLabel(fold, tree, draw) {
  const single = tree.single.has(fold.place),
    title = single ? 'Fold the layers into one line' : `List all ${count(fold.members.length)} layers`,
    flip = () => (listMembers(tree, fold.place), draw());
  return button(name(fold.label), flip, {class: 'link', tabindex: '-1', 'aria-pressed': String(single), title});
}

function listMembers(tree, place) {
  if (!tree.single.delete(place)) tree.single.add(place);
  if (!isOpen(tree, place)) toggle(tree, place);
}

// Whether a line is unfolded. With a filter, all lines are unfolded until the user folds them.
function isOpen(tree, place) {
  return tree.filtered ? !tree.folded.has(place) : tree.open.has(place);
}

function toggle(tree, place) {
  const set = tree.filtered ? tree.folded : tree.open;
  if (!set.delete(place)) set.add(place);
}

function treeKeyPressed(event, {run, tree, draw, around}) {
  const row = event.target.closest('tbody tr');
  if (!row || event.target !== row) return;
  const place = Number(row.dataset.place),
    rows = [...row.parentNode.children].filter(one => one.dataset.place), // without those with "Show all"
    at = rows.indexOf(row),
    inner = hasInside(run, tree, place),
    open = inner && isOpen(tree, place);
  const to = other => other && focusRow(tree, row, other);
  const change = (act, ...args) => {
    act(tree, ...args);
    draw();
    /** @type {HTMLElement} */ (document.querySelector(`tr[data-place="${place}"]`))?.focus();
  };
  actOnKey(event, {
    ArrowDown: () => to(rows[at + 1]),
    ArrowUp: () => to(rows[at - 1]),
    Home: () => to(rows[0]),
    End: () => to(rows.at(-1)),
    ArrowRight: () => (open ? to(rows[at + 1]) : inner && change(toggle, place)),
    ArrowLeft: () => {
      if (open) change(toggle, place);
      else to(rows.find(({dataset}) => Number(dataset.place) === around.get(place).parent));
    },
    Enter: () => {
      if (isFold(run, place)) change(listMembers, place);
      else location.hash = layerHref(place);
    },
  });
}

function focusRow(tree, from, to) {
  from.tabIndex = -1;
  to.tabIndex = 0;
  tree.focus = Number(to.dataset.place);
  to.focus();
}
