// The frame of the page: navigation by URL fragment, choice of the rank, theme, keyboard shortcuts.
const THEMES = {auto: 'Automatic', light: 'Light', dark: 'Dark'};

// Views of one layer or kernel, and the view of all of them.
const DETAILS = {
  layer: {of: 'layers', show: (run, state, place) => layerView(run, state, place)},
  kernel: {of: 'kernels', show: (run, _, place) => kernelView(run, place)},
};

function viewsOf(data) {
  if (data.kind === 'compare') return {compare: ['Comparison', (_, state) => comparisonView(data, state)]};
  return {
    summary: ['Summary', summaryView],
    layers: ['Layers', layersView],
    icicle: ['Icicle', icicleView],
    ...(data.runs.some(run => run.kernels.total) ? {kernels: ['Kernels', kernelsView]} : {}),
    roofline: ['Roofline', rooflineView],
    steps: ['Steps', stepsView],
    timeline: ['Timeline', timelineView],
    ...Object.fromEntries(
      data.runs[0].more
        .map((one, place) => [`more${place}`, [one.heading, run => moreView(run, place)]])
        .filter((_, place) => data.runs.some(run => records(run.more[place].rows).length)),
    ),
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
    document
      .getElementById('main')
      .replaceChildren(h('p', {role: 'alert'}, `The data of this page cannot be read: ${error.message}`));
    return;
  }
  Object.assign(COLUMNS, data.columns);
  if (data.runs.some(run => run.units === 'Matrix Cores')) nameMatrixCores();
  const page = {data, views: viewsOf(data), run: 0, states: new Map()};
  document.getElementById('head').append(...frame(page));
  addEventListener('hashchange', () => navigate(page, true));
  addEventListener('keydown', event => shortcut(event));
  navigate(page, false);
}

// Names the columns of Tensor Cores as AMD does.
function nameMatrixCores() {
  for (const column of Object.values(COLUMNS).flat()) {
    column.title = column.title.replace(/\bTC\b/, 'MC').replace('Tensor Core', 'Matrix Core');
    column.full = column.full.replace('Tensor Core', 'Matrix Core');
  }
}

function frame(page) {
  const {data} = page,
    names = data.kind === 'compare' ? data.names.join(' → ') : data.source;
  const ranks =
    data.runs.length > 1 &&
    data.kind !== 'compare' &&
    field(
      'Rank',
      choice(
        'rank',
        data.runs.map((run, place) => [String(place), run.name]),
        '0',
        value => {
          address.rank = Number(value);
          remember(true);
          navigate(page, false);
        },
      ),
    );
  return [
    h('div', {class: 'brand'}, h('strong', {}, 'annot'), name(names, 'source')),
    h(
      'nav',
      {'aria-label': 'Views'},
      h(
        'ul',
        {},
        Object.entries(page.views).map(([key, [text]]) => h('li', {}, h('a', {href: `#${key}`}, text))),
      ),
    ),
    h(
      'div',
      {class: 'tools'},
      ranks,
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
  const run = page.data.kind === 'compare' ? null : linked(page.data.runs[page.run]);
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

function shortcut(event) {
  const typing = event.target.closest?.('input, select, textarea');
  if (event.key === 'Escape' && event.target.id === 'search') event.target.blur();
  if (event.key !== '/' || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  /** @type {HTMLInputElement | null} */
  const search = document.querySelector('#search');
  if (search) {
    event.preventDefault();
    search.focus();
    search.select();
  } else if (document.querySelector('a[href="#layers"]')) {
    event.preventDefault();
    location.hash = '#layers';
    setTimeout(() => document.getElementById('search')?.focus());
  }
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
