// Formats numbers. `annot/report/units.py` decides the units, their limits and decimals, and `start` passes them on.
/** @type {{times: [number, string, number, number][], prefixes: [number, string][]}} */
const UNITS = {times: [], prefixes: []};

export function setUnits(units) {
  Object.assign(UNITS, units);
}

export function known(value) {
  return value !== null && value !== undefined;
}

// Rounds as Python does, exact ties to even. `toFixed` rounds them up.
function rounded(value, decimals) {
  const longer = value.toFixed(decimals + 1),
    below = longer.slice(0, decimals ? -1 : -2),
    isTie = longer.endsWith('5') && value.toFixed(60) === longer.padEnd(longer.length + 59 - decimals, '0');
  return Number(isTie && Number(below.at(-1)) % 2 === 0 ? below : value.toFixed(decimals));
}

/** @type {Map<number, Intl.NumberFormat>} */
const FORMATS = new Map(); // creating one is slow

// Formats with a number of decimals, without the sign of values that round to zero.
export function fixed(value, decimals) {
  if (!FORMATS.has(decimals)) {
    const digits = {minimumFractionDigits: decimals, maximumFractionDigits: decimals};
    FORMATS.set(decimals, new Intl.NumberFormat('en-US', {...digits, signDisplay: 'negative'}));
  }
  return FORMATS.get(decimals).format(rounded(value, decimals));
}

// The unit for a column of times (ns), chosen by the longest.
export function unitFor(times) {
  let longest = 0;
  for (const time of times) if (known(time) && Math.abs(time) > longest) longest = Math.abs(time);
  const [, name, ns, decimals] = UNITS.times.find(([least]) => longest >= least);
  return {name, ns, decimals};
}

export function inUnit(unit, ns) {
  return known(ns) ? fixed(ns / unit.ns, unit.decimals) : '';
}

export function duration(ns) {
  if (!known(ns)) return '';
  if (!ns) return '0';
  const unit = unitFor([ns]);
  return `${inUnit(unit, ns)} ${unit.name}`;
}

// A time that an interaction made, to the nanosecond.
export function instant(ns) {
  return known(ns) ? duration(Math.round(ns)) : '';
}

export function percent(part) {
  return known(part) ? `${fixed(100 * part, 1)}%` : '';
}

export function share(part, whole) {
  return known(part) && whole ? percent(part / whole) : '';
}

export function timeAndShare(ns, whole) {
  return [duration(ns), share(ns, whole)].filter(Boolean).join(' · ');
}

export function count(number) {
  return known(number) ? fixed(number, Number.isInteger(number) ? 0 : 1) : '';
}

// Three significant digits.
function digits(number) {
  const size = Math.abs(number);
  return fixed(number, size < 9.995 ? 2 : size < 99.95 ? 1 : 0).replaceAll(',', '');
}

// Three significant digits with an SI prefix.
export function amount(number, unit = '') {
  if (!known(number)) return '';
  const [least, prefix] = UNITS.prefixes.find(([limit]) => number >= limit * 0.9995) ?? [1, ''];
  if (prefix) return `${digits(number / least)} ${prefix}${unit}`;
  const text = digits(number);
  return (text.includes('.') ? text.replace(/0+$/, '').replace(/\.$/, '') : text) + (unit && ` ${unit}`);
}

export function plural(number, single, many = `${single}s`) {
  return `${count(number)} ${number === 1 ? single : many}`;
}
