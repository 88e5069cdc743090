// The data of the page, and the values of the layer tree under the current filters.
const PHASES = ['forward', 'backward', 'recompute'];
const INKS = [...PHASES, 'optimizer', 'data', 'other']; // phases with a color, from top to bottom of a box
const NOTHING = {phase: '', module: '', search: '', steps: '', time: ''};

async function readData() {
  const element = document.getElementById('data');
  if (element.getAttribute('type') === 'application/json') return JSON.parse(element.textContent);
  const bytes = Uint8Array.from(atob(element.textContent), char => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return JSON.parse(await new Response(stream).text());
}

// The rows of a table that is stored by column.
function records(table, names = Object.keys(table).filter(key => Array.isArray(table[key]))) {
  const length = names.length ? table[names[0]].length : 0;
  return Array.from({length}, (_, place) => Object.fromEntries(names.map(key => [key, table[key][place]])));
}

// Links each line of the layer table to its parent and children.
function linked(run) {
  if (run.children) return run;
  const above = [];
  run.children = run.lines.map(() => []);
  run.top = [];
  run.lineOf = new Map();
  run.lines.forEach((line, place) => {
    above.length = line.depth;
    line.place = place;
    line.parent = line.depth ? above[line.depth - 1] : -1;
    (line.parent < 0 ? run.top : run.children[line.parent]).push(place);
    above[line.depth] = place;
    for (const row of Object.values(line.rows)) run.lineOf.set(row, place);
  });
  foldsInside(run);
  return run;
}

// Says whether the times of a view are those of one step.
function perStep(run) {
  const steps = run.meta.per_step;
  return steps
    ? h('p', {class: 'hint'}, `Times are per step: the mean of ${plural(steps, 'step')} without warm-up.`)
    : null;
}

function title(line) {
  return line.title;
}

// The path and class of a line or fold, with the number of its layers.
function fullName(line) {
  const size = line.members ? `×${count(line.members.length)}` : '';
  return [title(line), line.module, size].filter(Boolean).join(' ');
}

// The steps of a text such as 7 or 3:20, as [first, end) like a Python slice; null: all; undefined: invalid text.
function stepRange(text, steps) {
  if (!text.trim()) return null;
  const match = /^\s*(?:(\d+)|(\d*):(\d*))\s*$/.exec(text);
  if (!match) return undefined;
  if (match[1]) return [Number(match[1]), Number(match[1]) + 1];
  return [Number(match[2] || 0), match[3] ? Number(match[3]) : steps];
}

// The self times of all rows, of all steps or of some: an array per column. They are means if the page is per step.
function timesOf(run, text) {
  const range = stepRange(text, run.layer_steps.steps);
  if (!range) return run.rows;
  const table = run.layer_steps;
  const names = ['host_self_ns', 'gpu_self_ns'].filter(key => table[key]);
  const sums = Object.fromEntries(names.map(key => [key, new Float64Array(run.rows.layer.length)]));
  const steps = run.meta.per_step ? Math.max(1, Math.min(range[1], table.steps) - range[0]) : 1;
  for (let cell = 0; cell < table.row.length; cell++) {
    if (table.step[cell] < range[0] || table.step[cell] >= range[1]) continue;
    for (const key of names) sums[key][table.row[cell]] += (table[key][cell] ?? 0) / steps;
  }
  return sums;
}

// The self times of each line by phase, and those with the lines inside: all lines add up to the outermost ones.
function linesOf(run, values, phase) {
  const own = run.lines.map(({rows}) => {
    const parts = {};
    for (const [key, row] of Object.entries(rows)) {
      if ((phase && key !== phase) || !known(values?.[row])) continue;
      parts[inkOf(key)] = (parts[inkOf(key)] ?? 0) + values[row];
    }
    return parts;
  });
  const whole = own.map(parts => ({...parts}));
  for (let place = whole.length - 1; place >= 0; place--) {
    const {parent} = run.lines[place];
    if (parent < 0) continue;
    for (const [key, ns] of Object.entries(whole[place])) whole[parent][key] = (whole[parent][key] ?? 0) + ns;
  }
  return {own, whole};
}

function sumParts(parts) {
  return sumKnown(Object.values(parts));
}

function sumOf(line, values, phase) {
  let total = null;
  for (const [name_, row] of Object.entries(line.rows)) {
    if ((!phase || name_ === phase) && known(values[row])) total = (total ?? 0) + values[row];
  }
  return total;
}

// The phase that gives a color.
function inkOf(phase) {
  return INKS.includes(phase) ? phase : 'other';
}

// The values of each line under the filters: times by phase, and whether the line matches.
function measured(run, filters) {
  const time = filters.time || run.time;
  const self = time.replace('_ns', '_self_ns');
  const times = timesOf(run, filters.steps);
  const needle = filters.search.trim().toLowerCase();
  const some = filters.steps.trim() !== '';
  const {own, whole: parts} = linesOf(run, times[self], filters.phase),
    host = linesOf(run, times.host_self_ns, filters.phase).whole;
  const numbers = run.lines.map((line, place) => {
    const total = sumParts(parts[place]);
    return {
      forward: parts[place].forward ?? null,
      backward: parts[place].backward ?? null,
      recompute: parts[place].recompute ?? null,
      kind: inkOf(Object.keys(line.rows)[0]),
      total,
      self: sumParts(own[place]),
      calls: some ? null : callsOf(line, run, filters.phase),
      kernels: some ? null : sumOf(line, run.rows.kernels, filters.phase),
      host: sumParts(host[place]),
      matches: matches(line, needle, filters, some && !total),
    };
  });
  let whole = 0;
  for (const value of times[self]) whole += value ?? 0;
  // Without a GPU, 100 % is at least the wall-clock time of the processes, as in the verdict.
  if (run.time === 'host_ns' && !some) whole = run.meta.whole_ns ?? whole;
  return {numbers, whole, time, own, parts};
}

// The number of forward calls of a layer, or of all calls without forward calls.
function callsOf(line, run, phase) {
  return sumOf(line, run.rows.calls, phase || 'forward') || sumOf(line, run.rows.calls, phase);
}

function matches(line, needle, filters, empty) {
  return (
    !empty &&
    (!filters.phase || filters.phase in line.rows) &&
    (!filters.module || line.module === filters.module) &&
    (!needle || `${title(line)} ${line.module}`.toLowerCase().includes(needle))
  );
}

function phasesIn(run) {
  return [...new Set(run.lines.flatMap(line => Object.keys(line.rows)))];
}

function modulesIn(run) {
  return [...new Set(run.lines.filter(line => !line.other && line.module).map(line => line.module))].sort();
}

// A line and all lines below it.
function subtree(run, place) {
  return [place, ...run.children[place].flatMap(child => subtree(run, child))];
}
