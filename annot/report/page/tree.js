// The layer tree: bars by phase, sorting among siblings, search, filters, arrow keys.
const LINES = 1000;

function layersView(run, state) {
  const tree = (state.tree ??= {table: 'Layers', initial: initiallyOpen(run), filtered: false, all: false, focus: -1});
  unfold(run, tree, (state.unfolded ??= {...UNFOLDED}));
  const holder = h('div', {class: 'scroll wide'});
  const status = h('p', {class: 'status', role: 'status'});
  const draw = () => {
    drawTree(run, state, tree, holder, status, draw);
    Object.assign(state.unfolded, {
      lines: placesText(unlike(tree.open, tree.initial)),
      listed: placesText(tree.single),
      every: placesText(tree.every),
      folded: placesText(tree.folded),
    });
    remember();
  };
  const filters = h(
    'form',
    {class: 'filters', role: 'search', onsubmit: event => event.preventDefault()},
    treeFilters(run, state, draw),
  );
  draw();
  return [
    h('h1', {}, 'Layers'),
    perStep(run),
    filters,
    status,
    holder,
    h('p', {class: 'hint'}, 'Arrow keys: move, fold and unfold. Enter: open the layer, or list repeated layers. /: search.'),
  ];
}

// Unfolds the lines that the URL says.
function unfold(run, tree, {lines, listed, every, folded}) {
  const places = text => placesOf(text, run.lines.length + run.folds.length);
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

function treeFilters(run, state, draw) {
  const filters = state.filters;
  const set = (key, value) => {
    filters[key] = value;
    state.tree?.folded.clear();
    debounce(draw);
  };
  const search = h('input', {
    type: 'search',
    id: 'search',
    placeholder: 'Path or class',
    value: filters.search,
    autocomplete: 'off',
    spellcheck: 'false',
    'aria-keyshortcuts': '/',
    oninput: event => set('search', event.target.value),
  });
  const parts = [
    field('Search', search),
    field(
      'Phase',
      choice('phase', [['', 'All phases'], ...phasesIn(run).map(phase => [phase, phase])], filters.phase, value =>
        set('phase', value),
      ),
    ),
  ];
  if (modulesIn(run).length) {
    parts.push(
      field(
        'Class',
        choice('module', [['', 'All classes'], ...modulesIn(run).map(one => [one, one])], filters.module, value =>
          set('module', value),
        ),
      ),
    );
  }
  if (run.layer_steps.steps) parts.push(field('Steps', stepsInput(run, filters, draw)));
  if (run.time === 'gpu_ns' && run.meta.host_ns !== null) {
    parts.push(
      field(
        'Time',
        choice(
          'time',
          [
            ['gpu_ns', 'GPU'],
            ['host_ns', 'Host'],
          ],
          filters.time || run.time,
          value => set('time', value),
        ),
      ),
    );
  }
  return parts;
}

function stepsInput(run, filters, draw) {
  return h('input', {
    id: 'steps',
    size: 7,
    placeholder: `0:${run.layer_steps.kept}`,
    value: filters.steps,
    inputmode: 'numeric',
    title: 'Steps to include, such as 7 or 3:20 (without step 20). Empty: the whole profile.',
    oninput: event => {
      const wrong = stepRange(event.target.value, run.layer_steps.steps) === undefined;
      event.target.setAttribute('aria-invalid', wrong);
      if (!wrong) {
        filters.steps = event.target.value;
        debounce(draw);
      }
    },
  });
}

function treeColumns(run, shown) {
  const present = phase => shown.numbers.some(one => known(one[phase]));
  const unit = unitFor(shown.numbers.map(one => one.total)),
    host = unitFor(shown.numbers.map(one => one.host)),
    each = unitFor(shown.numbers.map(one => one.slowest)),
    device = shown.time === 'gpu_ns';
  const timed = {show: value => inUnit(unit, value)};
  const ofEach = key => ({title: `${titleOf('tree', key)} ${each.name}`, show: value => inUnit(each, value)});
  const columns = columnsOf('tree', shown.numbers, {
    ...Object.fromEntries(PHASES.map(phase => [phase, present(phase) && timed])),
    total: timed,
    self: timed,
    share: {value: one => one.total, show: value => share(value, shown.whole)},
    median: ofEach('median'),
    slowest: ofEach('slowest'),
    index: {text: false},
    iqr: ofEach('iqr'),
    calls: present('calls') && {},
    kernels: run.time === 'gpu_ns' && present('kernels') && {show: value => count(value || null)},
    host: device &&
      present('host') && {title: `${titleOf('tree', 'host')} ${host.name}`, show: value => inUnit(host, value)},
  });
  return {columns, unit};
}

function drawTree(run, state, tree, holder, status, draw) {
  const shown = withFolds(run, measured(run, state.filters), state.filters);
  const {columns, unit} = treeColumns(run, shown);
  const all = [
    {title: 'Layer', text: true, value: place => title(lineAt(run, place))},
    ...columns.map(column => ({
      ...column,
      value: place => column.value(shown.numbers[place]),
      class: `col-${column.name}`,
    })),
  ];
  Object.assign(tree, keptSort(tree.table, all));
  const {places, around, cut, found} = visible(run, state.filters, tree, shown, all[tree.by]?.value);
  if (!places.includes(tree.focus)) tree.focus = places[0] ?? -1;
  const layers = shown.numbers.filter((one, place) => !lineAt(run, place).other && one.total);
  const longest = Math.max(1, ...(layers.length ? layers : shown.numbers).map(one => one.total ?? 0));
  const part = tree.all ? places : places.slice(0, LINES);
  const context = {run, shown, columns: all, longest, tree, draw, around};
  const moreRow = fold => cutRow(fold, all.length + 1, cut, () => (tree.every.add(fold), draw()));
  const head = h(
    'tr',
    {},
    all.map((column, place) => heading(column, place, tree, draw)),
  );
  head.children[0].after(h('th', {scope: 'col', class: 'bars'}, legend(shown)));
  const table = h(
    'table',
    {class: 'tree', role: 'treegrid', 'aria-label': 'Layers', onkeydown: event => treeKeyPressed(event, context)},
    h('thead', {}, head),
    h(
      'tbody',
      {},
      part.map((place, row) => [
        treeRow(place, context, part[row - 1]),
        [...cut].filter(([, {last}]) => last === place).map(([fold]) => moreRow(fold)),
      ]),
    ),
  );
  const more = part.length < places.length && showAll(places.length, 'lines', () => ((tree.all = true), draw()));
  holder.replaceChildren(table, more || '');
  const what = shown.time === 'gpu_ns' ? 'GPU' : 'Host';
  const kept =
    run.layer_steps.kept < run.layer_steps.steps ? `; the page has the first ${count(run.layer_steps.kept)} steps` : '';
  status.textContent = run.lines.length
    ? `${what} time in ${unit.name}, ${plural(found, 'line')} of ${count(run.lines.length)}${kept}`
    : 'No layers were recorded. Use emit_ranges(model).';
}

function legend(shown) {
  const bare = new Set(shown.numbers.filter(one => one.total && !PHASES.some(phase => one[phase])).map(one => one.kind));
  const keys = INKS.filter(key => bare.has(key) || shown.numbers.some(one => known(one[key])));
  return keys.map(key => h('span', {class: `key ${key}`}, key));
}

// The visible lines in order: lines that match and their parents, without folded ones. `around` has their depths and
// parents: a layer that is listed in a fold is a level deeper than in its model. `cut` has the folds that list only their
// first layers, with the last line of these.
function visible(run, filters, tree, shown, value) {
  tree.filtered = Boolean(filters.search.trim() || filters.module || filters.phase);
  const needed = neededPlaces(run, shown.numbers);
  const places = [],
    cut = new Map(),
    around = new Map();
  const visit = (inside, parent, listed) => {
    const some = inside.filter(place => needed.has(place)),
      ordered = value ? sorted(some, value, tree.down) : some,
      whole = !listed || tree.every.has(parent) || some.length <= LISTED;
    for (const place of whole ? ordered : ordered.slice(0, LISTED)) {
      places.push(place);
      around.set(place, {parent, depth: parent < 0 ? 0 : around.get(parent).depth + 1});
      const single = isOpen(tree, place) && isSingle(run, tree, shown, needed, place);
      if (isOpen(tree, place)) visit(placesInside(run, place, single), place, single);
    }
    if (!whole) cut.set(parent, {last: places.at(-1), number: some.length, depth: around.get(parent).depth + 1});
  };
  visit(placesInside(run, -1), -1, false);
  return {places, around, cut, found: run.lines.filter(line => shown.numbers[line.place].matches).length};
}

// The lines and folds that match, and all around them.
function neededPlaces(run, numbers) {
  const needed = new Set(),
    foldsOf = new Map();
  run.folds.forEach((fold, number) => {
    for (const member of fold.members) foldsOf.set(member, [...(foldsOf.get(member) ?? []), run.lines.length + number]);
  });
  const pending = numbers.flatMap((one, place) => (one.matches ? [place] : []));
  while (pending.length) {
    const place = pending.pop();
    if (place < 0 || needed.has(place)) continue;
    needed.add(place);
    pending.push(lineAt(run, place).parent, ...(foldsOf.get(place) ?? []));
  }
  return needed;
}

// Whether a fold lists its members: if the user says so, or if only single members match.
function isSingle(run, tree, shown, needed, place) {
  if (!isFold(run, place)) return false;
  const some = at => shown.numbers[at].matches || placesInside(run, at).some(some);
  return tree.single.has(place) || (tree.filtered && needed.has(place) && !some(place));
}

// The row that ends the first layers of a fold, with a button that shows all.
function cutRow(fold, columns, cut, act) {
  const {number, depth} = cut.get(fold),
    holder = h('div', {class: 'label'}, h('span', {class: 'fold'}), showAll(number, 'layers', act));
  holder.style.setProperty('--depth', Math.min(depth, 12));
  return h('tr', {role: 'row'}, h('td', {role: 'gridcell', class: 'text', colspan: columns}, holder));
}

function treeRow(place, context, before) {
  const {run, shown, columns, longest, tree, draw, around} = context;
  const line = lineAt(run, place),
    {depth, parent} = around.get(place),
    numbers = shown.numbers[place],
    inner = hasInside(run, tree, place);
  const opened_ = inner && isOpen(tree, place);
  const fold = inner
    ? h(
        'button',
        {
          type: 'button',
          class: 'fold',
          tabindex: '-1',
          'aria-hidden': 'true',
          onclick: () => {
            toggle(tree, place);
            draw();
          },
        },
        opened_ ? '▾' : '▸',
      )
    : h('span', {class: 'fold'});
  const label = isFold(run, place)
    ? foldLabel(line, tree, draw)
    : h('a', {href: `#layer/${place}`, tabindex: '-1'}, name(isFold(run, parent) ? title(line) : line.label));
  const first = h(
    'th',
    {scope: 'row', role: 'rowheader', class: 'text'},
    h(
      'div',
      {class: 'label'},
      fold,
      label,
      line.module && name(line.module, 'module'),
      line.count &&
        h('a', {class: 'count', href: partLink(place), title: 'Times of the repeated layers'}, line.count),
    ),
  );
  first.firstChild.style.setProperty('--depth', Math.min(depth, 12));
  const gap = line.other && before !== undefined && !lineAt(run, before).other ? ' gap' : '';
  return h(
    'tr',
    {
      role: 'row',
      'data-place': place,
      'aria-level': depth + 1,
      'aria-expanded': inner ? String(opened_) : null,
      tabindex: tree.focus === place ? '0' : '-1',
      class: (numbers.matches ? '' : 'context') + gap,
      onfocus: () => {
        tree.focus = place;
      },
    },
    first,
    h('td', {class: 'bars', role: 'gridcell'}, bars(numbers, longest)),
    columns
      .slice(1)
      .map(column => h('td', {role: 'gridcell', class: cellClass(column)}, column.show(column.value(place)))),
  );
}

// Whether there are lines inside. A fold whose layers have none lists them.
function hasInside(run, tree, place) {
  return placesInside(run, place, tree.single.has(place)).length > 0;
}

// The label of a fold: a button that lists its layers separately, or sums them up again.
function foldLabel(fold, tree, draw) {
  return h(
    'button',
    {
      type: 'button',
      class: 'link',
      tabindex: '-1',
      'aria-pressed': String(tree.single.has(fold.place)),
      title: tree.single.has(fold.place) ? 'Fold the layers into one line' : `List all ${count(fold.members.length)} layers`,
      onclick: () => {
        listMembers(tree, fold.place);
        draw();
      },
    },
    name(fold.label),
  );
}

function listMembers(tree, place) {
  if (!tree.single.delete(place)) tree.single.add(place);
  if (!isOpen(tree, place)) toggle(tree, place);
}

function bars(numbers, longest) {
  const known_ = PHASES.filter(phase => numbers[phase]);
  const parts = known_.length ? known_.map(phase => [phase, numbers[phase]]) : [[numbers.kind, numbers.total]];
  return h(
    'div',
    {class: 'bar', 'aria-hidden': 'true'},
    parts.map(([phase, ns]) => ns > 0 && withWidth(h('span', {class: phase}), (100 * ns) / longest)),
  );
}

// Whether a line is unfolded. With a filter, all lines are unfolded until the user folds them.
function isOpen(tree, place) {
  return tree.filtered ? !tree.folded.has(place) : tree.open.has(place);
}

function toggle(tree, place) {
  const set = tree.filtered ? tree.folded : tree.open;
  if (!set.delete(place)) set.add(place);
}

function treeKeyPressed(event, context) {
  const row = event.target.closest('tbody tr');
  if (!row || event.target !== row) return;
  const {run, tree, draw, around} = context,
    place = Number(row.dataset.place);
  const to = (element, way = 'nextElementSibling') => {
    while (element && !element.dataset.place) element = element[way]; // a row with "Show all"
    if (element) focusRow(tree, row, element);
  };
  const again = () => {
    draw();
    /** @type {HTMLElement} */ (document.querySelector(`tr[data-place="${place}"]`))?.focus();
  };
  const inner = hasInside(run, tree, place);
  const act = {
    ArrowDown: () => to(row.nextElementSibling),
    ArrowUp: () => to(row.previousElementSibling, 'previousElementSibling'),
    Home: () => to(row.parentNode.firstElementChild),
    End: () => to(row.parentNode.lastElementChild, 'previousElementSibling'),
    ArrowRight: () => {
      if (!inner) return;
      if (isOpen(tree, place)) to(row.nextElementSibling);
      else {
        toggle(tree, place);
        again();
      }
    },
    ArrowLeft: () => {
      if (inner && isOpen(tree, place)) {
        toggle(tree, place);
        again();
      } else to(row.parentNode.querySelector(`tr[data-place="${around.get(place).parent}"]`));
    },
    Enter: () => {
      if (isFold(run, place)) {
        listMembers(tree, place);
        again();
      } else location.hash = `#layer/${place}`;
    },
  }[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

function focusRow(tree, from, to) {
  from.tabIndex = -1;
  to.tabIndex = 0;
  tree.focus = Number(to.dataset.place);
  to.focus();
}
