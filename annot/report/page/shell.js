// The frame of the page: navigation by URL fragment, choice of the rank, theme, keyboard shortcuts.
const THEMES = {auto: 'Automatic', light: 'Light', dark: 'Dark'};

function viewsOf(data) {
  if (data.kind === 'compare') return {compare: ['Comparison', (_, state) => comparisonView(data, state)]};
  return {
    summary: ['Summary', summaryView],
    layers: ['Layers', layersView],
    kernels: ['Kernels', kernelsView],
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
  const page = {data, views: viewsOf(data), run: 0, states: new Map()};
  document.getElementById('head').append(...frame(page));
  addEventListener('hashchange', () => navigate(page, true));
  addEventListener('keydown', event => shortcut(event));
  navigate(page, false);
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
          page.run = Number(value);
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
    ),
  ];
}

// Shows the view of the URL fragment, or the first view. Each rank keeps its own filters.
function navigate(page, moved) {
  const [key, argument] = location.hash.slice(1).split('/'),
    first = Object.keys(page.views)[0];
  if (key === 'main' && document.getElementById('main').dataset.view) return; // target of the skip link
  const run = page.data.kind === 'compare' ? null : linked(page.data.runs[page.run]);
  const state = page.states.get(page.run) ?? {filters: {...NOTHING}};
  page.states.set(page.run, state);
  const inLayer = key === 'layer' && run,
    view = page.views[key] ? key : inLayer ? 'layers' : first;
  const shown = inLayer ? layerView(run, state, Number(argument)) : page.views[view][1](run, state);
  const main = document.getElementById('main');
  main.replaceChildren(...shown.flat(Infinity).filter(Boolean));
  main.dataset.view = inLayer ? 'layer' : view;
  for (const link of document.querySelectorAll('#head nav a')) {
    if (link.getAttribute('href') === `#${view}`) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  if (!moved) return;
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
