// The summary view: the first screen, totals, time breakdown, longest layers and kernels, more advice, notes.
import {adviceList} from './advice.js';
import {bar, cards, emptyText, h, hint, list, name, notesPanel, panel, terms} from './dom.js';
import {layerCell, perStep} from './elements.js';
import {BEST, firstScreen, partsOfStep} from './first.js';
import {kernelName, kernelNames} from './kernel.js';
import {grouped, inkOf, measured, records, selfOf} from './model.js';
import {foldedInside, lineAt, membersOf} from './places.js';
import {longest, sorted, titleOf} from './table.js';
import {duration, percent, timeAndShare} from './units.js';

export function summaryView(run) {
  const rows = new Map(records(run.summary).map(row => [`${row.section} ${row.item}`, row])),
    advice = records(run.advice).slice(BEST),
    {totals, about} = run.texts,
    profile = about.map(([term, text]) => [term, name(text)]);
  return [
    firstScreen(run, rows),
    perStep(run),
    totals.length ? cards(totals) : emptyText('The profile is empty: it contains neither ranges nor GPU activity.'),
    breakdown(run, rows),
    h('div.columns', topLayers(run), run.kernels.total ? topKernels(run) : layersOfParts(run)),
    advice.length > 0 && panel('More advice', adviceList(run, advice)),
    notesPanel('Notes', run.meta.notes),
    panel('Profile', terms('dl.about', profile)),
  ];
}

// The breakdown of the time of the steps into disjoint parts, which add up to the total.
function breakdown(run, rows) {
  const wall = rows.get('time wall'),
    device = run.time === 'gpu_ns';
  if (!wall?.ns) return null;
  const whole = run.meta.steps ? 'the steps' : 'the run',
    devices = wall.count > 1 ? ` on ${wall.count} ${device ? 'devices' : 'processes'}` : '',
    numbers = ['ns', 'share', 'hidden_ns'].map(key => h('th.number', {scope: 'col'}, titleOf('parts', key)));
  const lines = partsOfStep(run, rows)
    .filter(({key, ns, hidden_ns}) => ns || hidden_ns || (key === 'tensor_cores' && device))
    .map(({key, words, ns, share: part, hidden_ns, meaning}) =>
      h(
        'tr',
        h('th.text', {scope: 'row'}, h(`span.key.part-${key}`, words)),
        [duration(ns), percent(part), duration(hidden_ns || null)].map(text => h('td.number', text)),
        h('td.text.meaning', meaning),
      ),
    );
  const head = h('tr', h('th.text', {scope: 'col'}, 'Part'), numbers, h('th.text.meaning', {scope: 'col'}, 'Meaning'));
  const table = h('table.plain', h('caption.hidden', `Shares of ${whole}`), h('thead', head), h('tbody', lines));
  return panel(
    `Time breakdown of ${whole}`,
    h('div.scroll', table),
    hint(
      `${run.meta.steps ? 'Sum of the steps' : 'Total'}: ${duration(wall.ns)}${devices}. ` +
        'Overlapped: time during which a part above it runs.',
    ),
  );
}

// The item of a list with a value and a bar.
function topItem(label, value, parts, longest) {
  return [label, h('span.value', value), bar(parts, longest)];
}

const OUTER = ['(epoch)', '(batch)', '(unattributed)'];

// The layers, folds, optimizers, waits for data and ranges of the program with the most self time.
function topLayers(run) {
  const {numbers, whole} = measured(run),
    places = foldedInside(run, -1).filter(place => !OUTER.includes(lineAt(run, place).layer)),
    self = place => numbers[place].self;
  const best = longest(
    places.sort((a, b) => a - b),
    self,
  );
  if (!best.length) return panel('Layers', emptyText('No ranges were recorded. Use emit_ranges(model).'));
  const items = best.map(place =>
    topItem(layerCell(run, place), timeAndShare(self(place), whole), selfParts(run, place), self(best[0])),
  );
  return panel(
    'Layers with the most self time',
    list('ol.top', items),
    h('p', h('a', {href: '#layers'}, 'All layers')),
  );
}

// The self time of a line or fold by phase.
function selfParts(run, place) {
  const times = run.rows[selfOf(run.time)],
    rows = membersOf(run, place).flatMap(member => Object.entries(run.lines[member].rows)),
    sumOf = some => some.reduce((ns, [, row]) => ns + (times[row] ?? 0), 0);
  return [...grouped(rows, ([phase]) => phase)].map(([phase, some]) => [inkOf(phase), sumOf(some)]);
}

function topKernels(run) {
  const rows = records(run.kernels).slice(0, 10),
    names = kernelNames(run);
  const items = rows.map(({name: text, gpu_ns}) => {
    const value = timeAndShare(gpu_ns, run.meta.gpu_ns);
    return topItem(kernelName(names, text), value, [['other', gpu_ns]], rows[0].gpu_ns);
  });
  return panel('Kernels with the most time', list('ol.top', items), h('p', h('a', {href: '#kernels'}, 'All kernels')));
}

// Without GPU activity: the forward, backward and optimizer of the steps by layer, the longest first. The others of each
// part come last.
function layersOfParts(run) {
  const rows = records(run.summary).filter(({section}) => section === 'parts');
  if (!rows.length) return null;
  const single = row => row.count === null,
    ordered = [...sorted(rows.filter(single), row => row.ns, true), ...rows.filter(row => !single(row))],
    steps = run.meta.per_step || 1,
    whole = run.meta.steps ? 'step' : 'run',
    longest = Math.max(...rows.map(row => row.ns));
  const items = ordered.map(row => {
    const key = h(`span.key.part-${row.item}`, run.shares[row.item][0]),
      value = `${duration(row.ns / steps)} · ${percent(row.share)}`;
    return topItem([key, ' ', partOf(run, row)], value, [[`part-${row.item}`, row.ns]], longest);
  });
  return panel(
    `Longest layers in each phase of the ${whole}`,
    list('ol.top', items),
    hint(`Shares are of the time of the ${whole}. The shares of a phase add up to its share in the bar.`),
  );
}

// The layer or fold of a row as a link; a row that adds up others is text. Rows name an optimizer by its class.
function partOf(run, {item, text}) {
  const bare = text.replace(/ ×[\d,]+$/, ''),
    line =
      run.places.find(({title, module}) => [title, module].filter(Boolean).join(' ') === bare) ??
      run.lines.find(({layer, module, rows}) => item in rows && [module, `${layer} ${module}`].includes(bare));
  return line ? layerCell(run, line.place) : name(text);
}
