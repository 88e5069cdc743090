// The state of the page in the fragment of its URL, as #view/argument?key=value. A copied link opens the same state, and
// the entries of the history keep theirs. A link such as #layers names a view alone: the page adds the state that the
// reader left in it.
import {modulesIn, phasesIn, stepRange} from './model.js';

const KEPT = {
  layers: ['filters', 'unfolded'],
  icicle: ['filters'],
  kernels: ['kernels'],
  compare: ['comparison'],
  timeline: ['span'],
};
export const address = {view: '', argument: '', rank: 0, state: {}, usual: {}};

// The parts of a fragment. Malformed fragments have empty parts.
export function readAddress(text) {
  const [, place, query] = /^#?([^?]*)\??(.*)$/s.exec(text);
  const [view, argument = ''] = place.split('/');
  return {view, argument: /^\d{1,9}$/.test(argument) ? argument : '', values: new URLSearchParams(query)};
}

function fragmentOf({view, argument, rank, state, usual}) {
  const values = new URLSearchParams();
  for (const part of KEPT[view] ?? [])
    for (const [key, value] of Object.entries(state[part] ?? {}))
      if (value !== '' && value !== usual[key]) values.set(key, value);
  for (const [table, sort] of state.sorts?.get(view) ?? []) values.append('sort', `${table}:${sort}`);
  if (rank) values.set('rank', rank);
  const query = String(values);
  return `#${view}${argument && `/${argument}`}${query && `?${query}`}`;
}

// Writes the state of the view into the URL: in the current entry of the history, or in a new one.
export function remember(entry = false) {
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
export function rankOf({values}, shown, ranks) {
  const rank = Number(values.get('rank') ?? (history.state?.complete ? 0 : shown));
  return Number.isInteger(rank) && rank >= 0 && rank < ranks ? rank : 0;
}

// Makes a view the one that `remember` writes, with the state that a complete fragment describes.
export function arrive(view, {argument, values}, rank, state, data, run) {
  const usual = run ? {time: run.time} : {by: data.by, only: CHANGES[0]};
  Object.assign(address, {view, argument, rank, state, usual});
  if (!history.state?.complete && !String(values)) return;
  for (const part of KEPT[view] ?? []) {
    const taken = Object.entries(OFFERED[part](data, run)).map(([key, fits]) => {
      const value = values.get(key) ?? '';
      return [key, value !== '' && fits(value) ? value : (usual[key] ?? '')];
    });
    state[part] = {...state[part], ...Object.fromEntries(taken)};
  }
  const sorts = values.getAll('sort').map(sort => /^([^:]*):(.*)$/s.exec(sort)?.slice(1) ?? []);
  (state.sorts ??= new Map()).set(view, new Map(sorts.filter(sort => sort.length)));
}

// The values that each part of the state accepts in a link, by key.
const OFFERED = {
  filters: (_, run) => ({
    search: () => true,
    phase: value => phasesIn(run).includes(value),
    module: value => modulesIn(run).includes(value),
    steps: value => stepRange(value, run.layer_steps.steps) !== undefined,
    time: value => value === 'host_ns' && run.meta.host_ns !== null,
  }),
  unfolded: () => Object.fromEntries(Object.keys(UNFOLDED).map(key => [key, isPlaces])),
  kernels: (_, run) => ({search: () => true, kind: value => run.classes.kind.includes(value)}),
  comparison: data => ({
    by: value => Object.hasOwn(data.tables, value),
    search: () => true,
    phase: value => (data.tables[data.by].phase ?? []).includes(value),
    only: value => CHANGES.includes(value),
  }),
  span: (_, run) => ({
    ...Object.fromEntries(['from', 'to', 'begin', 'end'].map(key => [key, value => Number.isFinite(Number(value))])),
    marked: value => /^\d{1,9}$/.test(value) && Number(value) < run.lines.length,
  }),
};

// What a comparison shows; the first is usual.
export const CHANGES = ['place', 'all', 'slower', 'faster', 'alone'];

// The lines that the reader unfolded and folded: those unlike at first, folds that list their layers, those of them that
// list every layer, and lines folded under a filter.
export const UNFOLDED = {lines: '', listed: '', every: '', folded: ''};

// Numbers of lines as text, ascending: the distance of each run of neighbors to the one before, and how many follow.
// A text of more than LONGEST characters would not fit into a link: it ends with the last run that does.
const LONGEST = 600;
export function placesText(places) {
  const runs = [];
  for (const place of [...places].sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && place === last[0] + last[1] + 1) last[1]++;
    else runs.push([place, 0]);
  }
  const texts = runs.map(([place, more], at) => {
    const from = at ? runs[at - 1][0] + runs[at - 1][1] : 0;
    return (place - from).toString(36) + (more ? `-${more.toString(36)}` : '');
  });
  const text = texts.join('.');
  return text.length > LONGEST ? text.slice(0, text.lastIndexOf('.', LONGEST)) : text;
}

function isPlaces(text) {
  return text.length <= LONGEST && /^[0-9a-z]{1,6}(-[0-9a-z]{1,6})?(\.[0-9a-z]{1,6}(-[0-9a-z]{1,6})?)*$/.test(text);
}

// The numbers below `end` in such a text.
export function placesOf(text, end) {
  const places = new Set();
  let at = 0;
  for (const run of text ? text.split('.') : []) {
    const [from, more = 0] = run.split('-').map(one => parseInt(one, 36));
    const last = at + from + more;
    for (let place = at + from; place <= last && place < end; place++) places.add(place);
    at = last;
  }
  return places;
}

// The sort order of a table in the fragment, or its own: `by` is the number of a column, -1 the order of the rows.
export function keptSort(table, columns, by = -1, down = true) {
  const [key, way] = (address.state.sorts?.get(address.view)?.get(slug(table)) ?? '').split(':');
  const found = columns.findIndex(column => keyOf(column) === key);
  return found < 0 ? {by, down} : {by: found, down: way !== 'up'};
}

export function keepSort(table, column, down) {
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
