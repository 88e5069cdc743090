// Sortable tables. A column has name, title, value(row), optional show(value, row), and text: true for texts.
import {keepSort, keptSort} from './address.js';
import {bar, button, scroller, showAll} from './blocks.js';
import {announce, h, name, pathName} from './dom.js';
import {amount, count, duration, fixed, known, percent, plural} from './units.js';

export const LISTED = 50; // rows of a list of repeated layers; the reader may ask for all
const SHOWN = 500;
// The columns of each table, as annot/report/views.py declares them; `start` fills it.
export const COLUMNS = {};
const SHOWS = {
  ns: duration,
  'own ns': duration,
  share: percent,
  'of total': percent,
  percent: value => `${amount(value)}%`,
  ratio: value => fixed(value, 3),
  count,
  amount: value => amount(value),
  bytes: value => amount(value, 'B'),
  text: value => (value === true ? 'yes' : value === false ? '' : name(String(value))),
};

// The text of a value in a column.
export function shown(column, value) {
  return known(value) ? SHOWS[column.unit](value) : '';
}

// The columns of a table that have a value in any row. `own` replaces parts of columns by name, false leaves one out.
export function columnsOf(table, rows, own = {}) {
  return COLUMNS[table]
    .filter(column => own[column.name] !== false)
    .map(column => ({
      ...column,
      help: column.full,
      text: column.unit === 'text',
      class: column.minor ? 'minor' : '',
      value: row => row[column.name],
      show: value => shown(column, value),
      ...own[column.name],
    }))
    .filter(column => rows.some(row => known(column.value(row)) && column.value(row) !== ''));
}

export function titleOf(table, column) {
  return COLUMNS[table].find(({name: key}) => key === column).title;
}

// The first column of rows with a layer and its class.
export const LAYER = {
  title: 'Layer',
  text: true,
  value: row => row.layer || '(model)',
  show: (value, row) => [pathName(value), ' ', name(row.module, 'module')],
};

// A column of bars: `parts` returns the class and length of each part.
export function barColumn(title, value, parts, rows, look = 'bars minor') {
  const longest = Math.max(1, ...rows.map(row => value(row) ?? 0));
  return {title, class: look, value, show: (_, row) => bar(parts(row), longest)};
}

// Options: by (name of the first column to sort by), shown (number of rows before "Show all"), class, mark(row) (class of a
// row), and inside(row): the rows that a click on the row lists below it.
export function sortTable(caption, columns, rows, options = {}) {
  const by = columns.findIndex(column => options.by && column.name === options.by),
    state = {...keptSort(caption, columns, by), table: caption, every: new Set(), opened: new Set()},
    holder = scroller(caption);
  const draw = () => holder.replaceChildren(drawTable(caption, columns, rows, options, state, draw));
  draw();
  return holder;
}

function drawTable(caption, columns, rows, options, state, redraw) {
  const tableRow = (row, inner) => {
    const cells = columns.map((column, place) => {
      const opens = !place && options.inside && [opener(row, options.inside(row), state, redraw), ' '];
      const scope = place ? {} : {scope: 'row'};
      return h(place ? 'td' : 'th', {...scope, class: cellClass(column)}, opens, cell(column, row));
    });
    return h('tr', {class: inner ? 'inner' : null}, cells);
  };
  const part = (some, key, least, draw) => {
    const whole = state.every.has(key) || some.length <= least,
      ordered = state.by < 0 ? some : sorted(some, columns[state.by].value, state.down),
      more = () => showAll(count(some.length), 'rows', () => (state.every.add(key), redraw()));
    return [
      ordered.slice(0, whole ? some.length : least).map(draw),
      !whole && h('tr', h('td.text', {colspan: columns.length}, more())),
    ];
  };
  const drawRow = row => [
    tableRow(row, false),
    state.opened.has(row) && part(options.inside(row), row, LISTED, inner => tableRow(inner, true)),
  ];
  return h(
    'table',
    h('caption.hidden', caption),
    h('thead', headRow(columns, state, redraw)),
    h('tbody', part(rows, state, options.shown ?? SHOWN, drawRow)),
  );
}

export function headRow(columns, state, redraw) {
  const heads = columns.map((column, place) => heading(column, place, state, redraw));
  return h('tr', heads);
}

// A button before the name of a row that lists the rows inside it.
function opener(row, inside, state, redraw) {
  if (!inside?.length) return h('span.fold');
  const open = state.opened.has(row),
    label = `${open ? 'Fold' : 'List'} ${plural(inside.length, 'row')}`;
  const flip = event => {
    const place = [...event.target.closest('tbody').children].indexOf(event.target.closest('tr')),
      holder = event.target.closest('.scroll');
    if (!state.opened.delete(row)) state.opened.add(row);
    redraw();
    holder.querySelector('tbody').children[place].querySelector('.fold').focus();
  };
  const attributes = {class: 'fold', 'aria-expanded': String(open), 'aria-label': label, title: label};
  return button(open ? '▾' : '▸', flip, attributes);
}

export function cellClass(column) {
  return [column.text ? 'text' : 'number', column.class].filter(Boolean).join(' ');
}

function cell(column, row) {
  const value = column.value(row);
  return column.show ? column.show(value, row) : known(value) ? value : '';
}

// The heading of a column: a button that sorts, numbers by descending and texts by ascending order first.
function heading(column, place, state, redraw) {
  const active = state.by === place,
    arrow = h('span.arrow', {'aria-hidden': 'true'}, active ? (state.down ? '▼' : '▲') : '');
  const sort = () => {
    state.down = active ? !state.down : !column.text;
    state.by = place;
    keepSort(state.table, column, state.down);
    redraw();
    announce(`Sorted by ${column.title}, ${state.down ? 'largest' : 'smallest'} first`);
    /** @type {HTMLElement} */ (document.querySelector(`[data-column="${place}"].sorted button`))?.focus();
  };
  const attributes = {
    scope: 'col',
    'data-column': place,
    class: `${cellClass(column)}${active ? ' sorted' : ''}`,
    'aria-sort': active ? (state.down ? 'descending' : 'ascending') : 'none',
  };
  const content = column.text ? [column.title, arrow] : [arrow, column.title];
  return h('th', attributes, button(content, sort, {title: column.help || null}));
}

// A table without sorting: rows of a heading and cells under the headings of columns. `looks` are classes of columns.
export function factTable(caption, heads, rows, looks = []) {
  const lookAt = at => ({class: `number ${looks[at] ?? ''}`.trim()});
  const body = rows.map(([text, cells]) => {
    const numbers = cells.map((value, at) => h('td', lookAt(at), value));
    return h('tr', h('th.text', {scope: 'row'}, text), numbers);
  });
  const titles = heads.map((head, at) => h('th', {scope: 'col', ...lookAt(at)}, head)),
    head = h('thead', h('tr', h('td'), titles));
  return scroller(caption, h('table.facts', {'aria-label': caption}, head, h('tbody', body)));
}

const TEXTS = new Intl.Collator('en', {numeric: true});

// Sorts rows by a value. The sort is stable, and unknown values come last in both directions.
export function sorted(rows, value, down) {
  const keyed = rows.map((row, place) => [value(row), place, row]);
  keyed.sort((a, b) => {
    if (!known(a[0]) || !known(b[0])) return Number(known(b[0])) - Number(known(a[0])) || a[1] - b[1];
    const order = typeof a[0] === 'string' ? TEXTS.compare(a[0], b[0]) : a[0] - b[0];
    return (down ? -order : order) || a[1] - b[1];
  });
  return keyed.map(entry => entry[2]);
}

// The ten rows with the largest values, of those above 0.
export function longest(rows, value) {
  const above = rows.filter(row => value(row) > 0);
  return sorted(above, value, true).slice(0, 10);
}
