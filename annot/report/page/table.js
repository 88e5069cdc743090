// Sortable tables. A column has name, title, value(row), optional show(value, row), and text: true for texts.
const SHOWN = 500;
// The columns of each table, as annot/report/tables.py declares them; `start` fills it.
const COLUMNS = {};
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

// The columns of a table that have a value in any row. `own` replaces parts of columns by name, false leaves one out.
function columnsOf(table, rows, own = {}) {
  return COLUMNS[table]
    .filter(one => own[one.name] !== false)
    .map(one => ({
      ...one,
      help: one.full,
      text: one.unit === 'text',
      class: one.minor ? 'minor' : '',
      value: row => row[one.name],
      show: value => (known(value) ? SHOWS[one.unit](value) : ''),
      ...own[one.name],
    }))
    .filter(one => rows.some(row => known(one.value(row)) && one.value(row) !== ''));
}

function titleOf(table, column) {
  return COLUMNS[table].find(one => one.name === column).title;
}

function sortTable(caption, columns, rows, options = {}) {
  const by = columns.findIndex(column => options.by && column.name === options.by);
  const state = {...keptSort(caption, columns, by, options.down), table: caption, all: false};
  const holder = h('div', {class: 'scroll', tabindex: '0', role: 'group', 'aria-label': caption});
  const draw = () => holder.replaceChildren(drawTable(caption, columns, rows, options, state, draw));
  draw();
  return holder;
}

function drawTable(caption, columns, rows, options, state, redraw) {
  const ordered = state.by < 0 ? rows : sorted(rows, columns[state.by].value, state.down);
  const shown = state.all ? ordered : ordered.slice(0, options.shown ?? SHOWN);
  const body = h(
    'tbody',
    {},
    shown.map(row =>
      h(
        'tr',
        {class: options.mark?.(row)},
        columns.map((column, place) =>
          h(place ? 'td' : 'th', {scope: place ? null : 'row', class: cellClass(column)}, cell(column, row)),
        ),
      ),
    ),
  );
  const table = h(
    'table',
    {class: options.class},
    h('caption', {class: 'hidden'}, caption),
    h(
      'thead',
      {},
      h(
        'tr',
        {},
        columns.map((column, place) => heading(column, place, state, redraw)),
      ),
    ),
    body,
  );
  if (ordered.length === shown.length) return table;
  const more = h(
    'button',
    {
      type: 'button',
      onclick: () => {
        state.all = true;
        redraw();
      },
    },
    `Show all ${count(ordered.length)} rows`,
  );
  return h('div', {}, table, more);
}

function cellClass(column) {
  return [column.text ? 'text' : 'number', column.class].filter(Boolean).join(' ');
}

function cell(column, row) {
  const value = column.value(row);
  return column.show ? column.show(value, row) : known(value) ? value : '';
}

// The heading of a column: a button that sorts, numbers by descending and texts by ascending order first.
function heading(column, place, state, redraw) {
  const active = state.by === place;
  const button = h(
    'button',
    {
      type: 'button',
      title: column.help || null,
      onclick: () => {
        state.down = active ? !state.down : !column.text;
        state.by = place;
        keepSort(state.table, column, state.down);
        redraw();
        announce(`Sorted by ${column.title}, ${state.down ? 'largest' : 'smallest'} first`);
        /** @type {HTMLElement} */ (document.querySelector(`[data-column="${place}"].sorted button`))?.focus();
      },
    },
    column.text ? column.title : '',
    h('span', {class: 'arrow', 'aria-hidden': 'true'}, active ? (state.down ? '▼' : '▲') : ''),
    column.text ? '' : column.title,
  );
  return h(
    'th',
    {
      scope: 'col',
      'data-column': place,
      class: `${cellClass(column)}${active ? ' sorted' : ''}`,
      'aria-sort': active ? (state.down ? 'descending' : 'ascending') : 'none',
    },
    button,
  );
}

const TEXTS = new Intl.Collator('en', {numeric: true});

// Sorts rows by a value. The sort is stable, and unknown values come last in both directions.
function sorted(rows, value, down) {
  const keyed = rows.map((row, place) => [value(row), place, row]);
  keyed.sort((a, b) => {
    if (!known(a[0]) || !known(b[0])) return Number(known(b[0])) - Number(known(a[0])) || a[1] - b[1];
    const order = typeof a[0] === 'string' ? TEXTS.compare(a[0], b[0]) : a[0] - b[0];
    return (down ? -order : order) || a[1] - b[1];
  });
  return keyed.map(entry => entry[2]);
}
