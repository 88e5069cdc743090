// The state of the page in the fragment of its URL, as #view/argument?key=value. A copied link opens the same state, and
// the entries of the history keep theirs. A link such as #layers names a view alone: the page adds the state that the
// reader left in it.
const KEPT = {layers: 'filters', icicle: 'filters', kernels: 'kernels', compare: 'comparison', timeline: 'span'};
const address = {view: '', argument: '', rank: 0, state: {}, usual: {}};

// The parts of a fragment. Malformed fragments have empty parts.
function readAddress(text) {
  const [, place, query] = /^#?([^?]*)\??(.*)$/s.exec(text);
  const [view, argument = ''] = place.split('/');
  return {view, argument: /^\d{1,9}$/.test(argument) ? argument : '', values: new URLSearchParams(query)};
}

function fragmentOf({view, argument, rank, state, usual}) {
  const values = new URLSearchParams();
  for (const [key, value] of Object.entries(state[KEPT[view]] ?? {}))
    if (value !== '' && value !== usual[key]) values.set(key, value);
  for (const [table, sort] of state.sorts?.get(view) ?? []) values.append('sort', `${table}:${sort}`);
  if (rank) values.set('rank', rank);
  const query = String(values);
  return `#${view}${argument && `/${argument}`}${query && `?${query}`}`;
}

// Writes the state of the view into the URL: in the current entry of the history, or in a new one.
function remember(entry = false) {
  const text = fragmentOf(address),
    same = text === location.hash;
  if (entry && same) return;
  try {
    history[entry ? 'pushState' : 'replaceState']({complete: true}, '', same ? undefined : text);
  } catch {
    /* a frame without an origin of its own has no history */
  }
}

// The rank of a fragment, or the rank that the page shows if a link names only a view.
function rankOf({values}, shown, ranks) {
  const rank = Number(values.get('rank') ?? (history.state?.complete ? 0 : shown));
  return Number.isInteger(rank) && rank >= 0 && rank < ranks ? rank : 0;
}

// Makes a view the one that `remember` writes, with the state that a complete fragment describes.
function arrive(view, {argument, values}, rank, state, data, run) {
  const usual = run ? {time: run.time} : {by: data.by, only: 'place'};
  Object.assign(address, {view, argument, rank, state, usual});
  if (!history.state?.complete && !String(values)) return;
  const offered = Object.hasOwn(OFFERED, view) ? OFFERED[view](data, run) : {};
  const taken = Object.entries(offered).map(([key, fits]) => {
    const value = values.get(key) ?? '';
    return [key, value !== '' && fits(value) ? value : usual[key] ?? ''];
  });
  if (taken.length) state[KEPT[view]] = {...state[KEPT[view]], ...Object.fromEntries(taken)};
  const sorts = values.getAll('sort').map(sort => /^([^:]*):(.*)$/s.exec(sort)?.slice(1) ?? []);
  (state.sorts ??= new Map()).set(view, new Map(sorts.filter(sort => sort.length)));
}

// The values that each view accepts in a link, by key.
const OFFERED = {
  layers: (_, run) => layerFilters(run),
  icicle: (_, run) => layerFilters(run),
  kernels: (_, run) => ({search: () => true, kind: value => run.classes.kind.includes(value)}),
  compare: data => ({
    by: value => Object.hasOwn(data.tables, value),
    search: () => true,
    phase: value => (data.tables[data.by].phase ?? []).includes(value),
    only: value => Object.hasOwn(COMPARED, value),
  }),
  timeline: (_, run) => ({
    ...Object.fromEntries(['from', 'to', 'begin', 'end'].map(key => [key, value => Number.isFinite(Number(value))])),
    marked: value => /^\d{1,9}$/.test(value) && Number(value) < run.lines.length,
  }),
};

function layerFilters(run) {
  return {
    search: () => true,
    phase: value => phasesIn(run).includes(value),
    module: value => modulesIn(run).includes(value),
    steps: value => stepRange(value, run.layer_steps.steps) !== undefined,
    time: value => value === 'host_ns' && run.meta.host_ns !== null,
  };
}

// The sort order of a table in the fragment, or its own: `by` is the number of a column, -1 the order of the rows.
function keptSort(table, columns, by = -1, down = true) {
  const [key, way] = (address.state.sorts?.get(address.view)?.get(slug(table)) ?? '').split(':');
  const found = columns.findIndex(column => keyOf(column) === key);
  return found < 0 ? {by, down} : {by: found, down: way !== 'up'};
}

function keepSort(table, column, down) {
  const {state, view} = address,
    views = (state.sorts ??= new Map());
  if (!views.has(view)) views.set(view, new Map());
  views.get(view).set(slug(table), `${keyOf(column)}${down ? '' : ':up'}`);
  remember();
}

function keyOf(column) {
  return column.name ?? slug(column.title);
}

function slug(text) {
  return text.toLowerCase().replace(/[^a-z0-9]+/g, '-');
}
