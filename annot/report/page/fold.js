// Repeated layers in one view: sums, how the layers differ, the time of each, layers inside, kernels and steps.
import {panel} from './blocks.js';
import {h, name} from './dom.js';
import {stackedBars} from './drawing.js';
import {crumbs, foldSize, layerHref, perStep} from './elements.js';
import {childrenOf, kernelsOf, layerSteps, timesTable} from './layer.js';
import {measured, partsOf, PHASES, spreadOf} from './model.js';
import {lineAt} from './places.js';
import {factTable, titleOf} from './table.js';
import {duration, instant, known} from './units.js';

export function foldView(run, place) {
  const fold = lineAt(run, place),
    {numbers} = measured(run),
    label = member => lineAt(run, member).title;
  return [
    crumbs(run, fold),
    h('h1', name(fold.layer), ' ', name(fold.module, 'module'), foldSize(fold)),
    perStep(run),
    panel('Times of the layers', spreadTable(fold, numbers)),
    panel('Time of each layer', memberBars(run, fold, numbers)),
    h('div.columns', panel('Layers', timesTable(run, 'Layers', fold.members, numbers, label)), childrenOf(run, place)),
    kernelsOf(run, place),
    layerSteps(run, fold),
    h('p', h('a', {href: `#icicle/${place}`}, 'Show in the icicle')),
  ];
}

// Sum, median, slowest layer and spread, in each phase and in all.
function spreadTable(fold, all) {
  const numbers = all[fold.place],
    phases = [...PHASES.filter(phase => known(numbers[phase])), 'total'],
    spreads = phases.map(phase => spreadOf(fold, all, phase)),
    heads = phases.map(phase => h('span', {class: PHASES.includes(phase) && `key ${phase}`}, phase));
  const slowest = ({slowest: ns, index}) => {
    const member = fold.members[fold.indices.indexOf(index)];
    return known(ns) && [duration(ns), ' (', h('a', {href: layerHref(member)}, index), ')'];
  };
  return factTable('Times of the layers', heads, [
    ['Total', phases.map(phase => duration(numbers[phase]))],
    [titleOf('tree', 'median'), spreads.map(({median}) => instant(median))],
    [`${titleOf('tree', 'slowest')} (${titleOf('tree', 'index').toLowerCase()})`, spreads.map(slowest)],
    [titleOf('tree', 'iqr'), spreads.map(({iqr}) => instant(iqr))],
  ]);
}

// A bar for each layer, with its phases on top of each other. Each is a link to the layer.
function memberBars(run, fold, numbers) {
  const bars = fold.members.map(place => {
    const parts = partsOf(numbers[place]),
      times = parts.map(([phase, ns]) => `${phase} ${duration(ns)}`);
    return {parts, link: layerHref(place).slice(1), tip: [run.lines[place].title, ...times].join(', ')};
  });
  return stackedBars(`Time of each layer of ${fold.layer}`, bars);
}
