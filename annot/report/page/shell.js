// The frame of the page: navigation by URL fragment, choice of the rank, theme, keyboard shortcuts.
import {address, arrive, rankOf, readAddress, remember} from './address.js';
import {choice, field, list} from './blocks.js';
import {h, name, onShortcut} from './dom.js';
import {comparisonView} from './compare.js';
import {foldView} from './fold.js';
import {helpTools} from './help.js';
import {icicleView} from './icicle.js';
import {kernelView} from './kernel.js';
import {layerView} from './layer.js';
import {NOTHING, readData, records} from './model.js';
import {isFold, lineAt, linked} from './places.js';
import {summaryView} from './summary.js';
import {COLUMNS} from './table.js';
import {timelineView} from './timeline.js';
import {layersView} from './tree.js';
import {trialView} from './trial.js';
import {setUnits} from './units.js';
import {kernelsView, moreView, ranksView, rooflineView, stepsView} from './views.js';

const THEMES = {auto: 'Automatic', light: 'Light', dark: 'Dark'};

// Views of one layer or kernel, and the view of all of them.
const DETAILS = {
  layer: {
    of: 'layers',
    show: (run, _, place) => (isFold(run, place) && lineAt(run, place) ? foldView : layerView)(run, place),
  },
  kernel: {of: 'kernels', show: (run, _, place) => kernelView(run, place)},
};

// The title of each view, and the function that shows it.
function viewsOf(data) {
  if (data.kind !== 'report')
    return {
      ...(data.trial ? {trial: ['Changes', () => trialView(data)]} : {}),
      ...(data.tables ? {compare: ['Comparison', (_, state) => comparisonView(data, state)]} : {}),
    };
  const more = data.runs[0].more
    .map(({heading}, place) => [`more${place}`, [heading, run => moreView(run, place)]])
    .filter((_, place) => data.runs.some(run => records(run.more[place].rows).length));
  return {
    summary: ['Summary', summaryView],
    layers: ['Layers', layersView],
    icicle: ['Icicle', icicleView],
    ...(data.runs.some(run => run.kernels.total) ? {kernels: ['Kernels', kernelsView]} : {}),
    roofline: ['Roofline', rooflineView],
    steps: ['Steps', stepsView],
    timeline: ['Timeline', timelineView],
    ...Object.fromEntries(more),
    ...(data.ranks ? {ranks: ['Ranks', () => ranksView(data)]} : {}),
  };
}

async function start() {
  theme(stored() ?? 'auto');
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => theme(stored() ?? 'auto'));
  let data;
  try {
    data = await readData();
  } catch (error) {
    const text = `The data of this page cannot be read: ${error.message}`;
    return document.getElementById('main').replaceChildren(h('p', {role: 'alert'}, text));
  }
  Object.assign(COLUMNS, data.columns);
  setUnits(data.units);
  const page = {data, views: viewsOf(data), run: 0, states: new Map()};
  document.getElementById('head').append(...frame(page));
  addEventListener('hashchange', () => navigate(page, true));
  onShortcut('/', search);
  addEventListener('keydown', leaveSearch);
  navigate(page, false);
}

function frame(page) {
  const {data, views} = page,
    ranks = data.kind === 'report' && data.runs.length > 1 && data.runs.map((run, place) => [String(place), run.name]);
  const chooseRank = value => {
    address.rank = Number(value);
    remember(true);
    navigate(page, false);
  };
  const links = Object.entries(views).map(([key, [text]]) => h('a', {href: `#${key}`}, text));
  return [
    h('div.brand', h('strong', 'annot'), name(data.source, 'source')),
    h('nav', {'aria-label': 'Views'}, list('ul', links)),
    h(
      'div.tools',
      ranks && field('Rank', choice('rank', ranks, '0', chooseRank)),
      field('Theme', choice('theme', Object.entries(THEMES), stored() ?? 'auto', store)),
      helpTools(page),
    ),
  ];
}

// Shows the view of the URL fragment, or the first view.
function navigate(page, moved) {
  const found = readAddress(location.hash),
    first = Object.keys(page.views)[0],
    main = document.getElementById('main');
  if (found.view === 'main' && main.dataset.view) return; // target of the skip link
  page.run = rankOf(found, page.run, page.data.runs.length);
  const run = page.data.kind === 'report' ? linked(page.data.runs[page.run]) : null;
  const state = page.states.get(page.run) ?? {filters: {...NOTHING}};
  page.states.set(page.run, state);
  const detail = run && found.argument !== '' && Object.hasOwn(DETAILS, found.view) ? DETAILS[found.view] : null,
    view = Object.hasOwn(page.views, found.view) ? found.view : (detail?.of ?? first),
    shown_ = detail ? found.view : view,
    again = main.dataset.view === shown_ && !detail,
    focused = document.activeElement.id;
  arrive(shown_, found, page.run, state, page.data, run);
  const place = found.argument === '' ? -1 : Number(found.argument);
  const shown = (detail?.show ?? page.views[view][1])(run, state, place);
  main.replaceChildren(...shown.flat(Infinity).filter(Boolean));
  main.dataset.view = shown_;
  for (const link of document.querySelectorAll('#head nav a')) {
    if (link.getAttribute('href') === `#${view}`) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  const rank = /** @type {HTMLSelectElement} */ (document.getElementById('rank'));
  if (rank) rank.value = String(page.run);
  remember();
  if (!moved) return;
  if (again) return void document.getElementById(focused)?.focus(); // the same view with another state
  scrollTo(0, 0);
  const top = main.querySelector('h1');
  top.tabIndex = -1;
  top.focus({preventScroll: true});
}

// Puts the cursor into the search of the view, or of the layers.
function search() {
  const input = /** @type {HTMLInputElement | null} */ (document.querySelector('#search'));
  input?.focus();
  if (input) input.select();
  else if (document.querySelector('a[href="#layers"]')) {
    location.hash = '#layers';
    setTimeout(() => document.getElementById('search')?.focus());
  }
}

function leaveSearch(event) {
  if (event.key === 'Escape' && event.target.id === 'search') event.target.blur();
}

function stored() {
  try {
    return Object.hasOwn(THEMES, localStorage.getItem('annot-theme')) ? localStorage.getItem('annot-theme') : null;
  } catch {
    return null;
  }
}

function store(value) {
  try {
    localStorage.setItem('annot-theme', value);
  } catch {
    /* some browsers block localStorage; the choice then lasts until the page is closed */
  }
  theme(value);
}

function theme(value) {
  const dark = value === 'auto' ? matchMedia('(prefers-color-scheme: dark)').matches : value === 'dark';
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  dispatchEvent(new Event('resize'));
}

start();
