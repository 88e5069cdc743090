// Sortable tables. A column has name, title, value(row), optional show(value, row), and text: true for texts.
const SHOWN = 500,
  LISTED = 50; // rows of a list of repeated layers; the reader may ask for all
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

// Options: by and down (first order), shown (number of rows before "Show all"), class, mark(row) (class of a row), and
// inside(row): the rows that a click on the row lists below it.
function sortTable(caption, columns, rows, options = {}) {
  const by = columns.findIndex(column => options.by && column.name === options.by);
  const state = {...keptSort(caption, columns, by, options.down), table: caption, every: new Set(), opened: new Set()};
  const holder = h('div', {class: 'scroll', tabindex: '0', role: 'group', 'aria-label': caption});
  const draw = () => holder.replaceChildren(drawTable(caption, columns, rows, options, state, draw));
  draw();
  return holder;
}

function drawTable(caption, columns, rows, options, state, redraw) {
  const ordered = some => (state.by < 0 ? some : sorted(some, columns[state.by].value, state.down));
  const tableRow = (row, inner) =>
    h(
      'tr',
      {class: [options.mark?.(row), inner && 'inner'].filter(Boolean).join(' ') || null},
      columns.map((column, place) =>
        h(
          place ? 'td' : 'th',
          {scope: place ? null : 'row', class: cellClass(column)},
          !place && options.inside && [opener(row, options.inside(row), state, redraw), ' '],
          cell(column, row),
        ),
      ),
    );
  const part = (some, key, shown, draw) => {
    const whole = state.every.has(key) || some.length <= shown;
    const more = whole ? null : showAll(some.length, 'rows', () => (state.every.add(key), redraw()));
    return [
      ordered(some).slice(0, whole ? some.length : shown).map(draw),
      more && h('tr', {}, h('td', {class: 'text', colspan: columns.length}, more)),
    ];
  };
  const body = h(
    'tbody',
    {},
    part(rows, state, options.shown ?? SHOWN, row => [
      tableRow(row, false),
      state.opened.has(row) && part(options.inside(row), row, LISTED, one => tableRow(one, true)),
    ]),
  );
  return h(
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
}

// A button that shows all rows of a list of which a page shows the first.
function showAll(number, what, act) {
  return h('button', {type: 'button', class: 'more', onclick: act}, `Show all ${count(number)} ${what}`);
}

// A button before the name of a row that lists the rows inside it.
function opener(row, inside, state, redraw) {
  if (!inside?.length) return h('span', {class: 'fold'});
  const open = state.opened.has(row);
  const flip = event => {
    const place = [...event.target.closest('tbody').children].indexOf(event.target.closest('tr')),
      holder = event.target.closest('.scroll');
    if (!state.opened.delete(row)) state.opened.add(row);
    redraw();
    holder.querySelector('tbody').children[place].querySelector('.fold').focus();
  };
  const label = `${open ? 'Fold' : 'List'} ${plural(inside.length, 'row')}`;
  return h(
    'button',
    {type: 'button', class: 'fold', 'aria-expanded': String(open), 'aria-label': label, title: label, onclick: flip},
    open ? '▾' : '▸',
  );
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
