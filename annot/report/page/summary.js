// The summary view: the first screen, totals, time breakdown, longest layers and kernels, more advice, notes.
import {adviceList} from './advice.js';
import {colorKey, bar, cards, emptyText, hint, list, notesPanel, panel, terms} from './blocks.js';
import {h, name} from './dom.js';
import {layerCell, perStep} from './elements.js';
import {BEST, firstScreen, partsOfStep} from './first.js';
import {kernelName, kernelNames} from './kernel.js';
import {measured, records} from './model.js';
import {foldedInside, lineAt} from './places.js';
import {longest, titleOf} from './table.js';
import {triedPanel} from './trial.js';
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
    run.tried && triedPanel(run.tried),
    notesPanel('Notes', run.meta.notes),
    panel('Profile', terms('dl.about', profile)),
  ];
}

// The breakdown of the time of the steps into disjoint parts, which add up to the total.
function breakdown(run, rows) {
  if (!run.texts.breakdown) return null;
  const whole = run.meta.steps ? 'the steps' : 'the run',
    shown = ({key, ns, hidden_ns}) => ns || hidden_ns || (key === 'tensor_cores' && run.time === 'gpu_ns'),
    numbers = ['ns', 'share', 'hidden_ns'].map(key => h('th.number', {scope: 'col'}, titleOf('parts', key)));
  const lines = partsOfStep(run, rows)
    .filter(shown)
    .map(({key, words, ns, share, hidden_ns, meaning}) => {
      const cells = [duration(ns), percent(share), duration(hidden_ns || null)].map(text => h('td.number', text)),
        first = h('th.text', {scope: 'row'}, colorKey(`part-${key}`, words));
      return h('tr', first, cells, h('td.text.meaning', meaning));
    });
  const head = h('tr', h('th.text', {scope: 'col'}, 'Part'), numbers, h('th.text.meaning', {scope: 'col'}, 'Meaning')),
    table = h('table.plain', h('caption.hidden', `Shares of ${whole}`), h('thead', head), h('tbody', lines));
  return panel(`Time breakdown of ${whole}`, h('div.scroll', table), hint(run.texts.breakdown));
}

// The item of a list with a value and a bar.
function topItem(label, value, parts, longest) {
  return [label, h('span.value', value), bar(parts, longest)];
}

const OUTER = ['(epoch)', '(batch)', '(unattributed)'];

// The layers, folds, optimizers, waits for data and ranges of the program with the most self time.
function topLayers(run) {
  const {numbers, whole, own} = measured(run),
    places = foldedInside(run, -1).filter(place => !OUTER.includes(lineAt(run, place).layer)),
    inOrder = places.sort((a, b) => a - b),
    self = place => numbers[place].self,
    best = longest(inOrder, self);
  if (!best.length) return panel('Layers', emptyText('No ranges were recorded. Use emit_ranges(model).'));
  const items = best.map(place =>
    topItem(layerCell(run, place), timeAndShare(self(place), whole), Object.entries(own[place]), self(best[0])),
  );
  return panel(
    'Layers with the most self time',
    list('ol.top', items),
    h('p', h('a', {href: '#layers'}, 'All layers')),
  );
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

// Without GPU activity: the forward, backward and optimizer of the steps by layer. Rows that add up others are texts.
function layersOfParts(run) {
  if (!run.parts.length) return null;
  const whole = run.meta.steps ? 'step' : 'run',
    longest = Math.max(...run.parts.map(({ns}) => ns));
  const items = run.parts.map(({part, place, text, ns, share}) => {
    const key = colorKey(`part-${part}`, run.shares[part][0]),
      label = place === null ? name(text) : layerCell(run, place);
    return topItem([key, ' ', label], `${duration(ns)} · ${percent(share)}`, [[`part-${part}`, ns]], longest);
  });
  return panel(
    `Longest layers in each phase of the ${whole}`,
    list('ol.top', items),
    hint(`Shares are of the time of the ${whole}. The shares of a phase add up to its share in the bar.`),
  );
}
