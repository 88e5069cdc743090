// Human-readable numbers, with the rules of annot/report/units.py; test_page.py compares the two.
/** @type {[number, {name: string, ns: number, decimals: number}][]} */
const UNITS = [
  [1e10, {name: 's', ns: 1e9, decimals: 3}],
  [1e9, {name: 'ms', ns: 1e6, decimals: 1}],
  [1e8, {name: 'ms', ns: 1e6, decimals: 2}],
  [1e6, {name: 'ms', ns: 1e6, decimals: 3}],
  [0, {name: 'µs', ns: 1e3, decimals: 2}],
];
/** @type {[number, string][]} */
const PREFIXES = [
  [1e18, 'E'],
  [1e15, 'P'],
  [1e12, 'T'],
  [1e9, 'G'],
  [1e6, 'M'],
  [1e3, 'k'],
];

function known(value) {
  return value !== null && value !== undefined;
}

// Formats with a number of decimals, without the sign of values that round to zero. Intl.NumberFormat is slow to
// create, so the formats are cached.
function fixed(value, decimals) {
  if (!fixed.formats.has(decimals)) {
    /** @type {Intl.NumberFormatOptions} */
    const digits = {minimumFractionDigits: decimals, maximumFractionDigits: decimals, signDisplay: 'negative'};
    fixed.formats.set(decimals, new Intl.NumberFormat('en-US', digits));
  }
  return fixed.formats.get(decimals).format(value);
}
fixed.formats = new Map();

// The unit for a column of times (ns), chosen by the longest.
function unitFor(times) {
  let longest = 0;
  for (const time of times) if (known(time) && Math.abs(time) > longest) longest = Math.abs(time);
  return UNITS.find(([least]) => longest >= least)[1];
}

function inUnit(unit, ns) {
  return known(ns) ? fixed(ns / unit.ns, unit.decimals) : '';
}

function duration(ns) {
  if (!known(ns)) return '';
  if (!ns) return '0';
  const unit = unitFor([ns]);
  return `${inUnit(unit, ns)} ${unit.name}`;
}

function percent(part) {
  return known(part) ? `${fixed(100 * part, 1)}%` : '';
}

function share(part, whole) {
  return known(part) && whole ? percent(part / whole) : '';
}

function count(number) {
  return known(number) ? fixed(number, Number.isInteger(number) ? 0 : 1) : '';
}

function decimalsOf(size) {
  return size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
}

function amount(number, unit = '') {
  if (!known(number)) return '';
  for (const [least, prefix] of PREFIXES) {
    if (number >= least * 0.9995) {
      const scaled = number / least;
      return `${scaled.toFixed(decimalsOf(scaled))} ${prefix}${unit}`;
    }
  }
  const text = number.toFixed(decimalsOf(Math.abs(number)));
  return (text.includes('.') ? text.replace(/0+$/, '').replace(/\.$/, '') : text) + (unit && ` ${unit}`);
}

function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}
