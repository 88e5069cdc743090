// Advice: what to change, how much it saves, why, where and how.
import {list} from './blocks.js';
import {h} from './dom.js';
import {whereText} from './elements.js';
import {known, percent} from './units.js';

// What advice saves at most; null: the bound says nothing.
function gain({saves}, show, of) {
  if (!known(saves)) return `Saves an unknown part${of}`;
  return saves ? ['Saves at most ', show(percent(saves)), of] : 'Saves no time by itself';
}

export function adviceList(run, advice) {
  const of = ` of the ${run.meta.steps ? 'step' : 'run'}`;
  const items = advice.map(item => [
    h('strong', item.advice),
    h('p', gain(item, String, of), '.'),
    h('p', `${item.evidence}.`),
    whereText(run, item.where, 8),
    code(item),
  ]);
  return list('ol.advice', items);
}

export function adviceCards(run, advice) {
  const items = advice.map(item => [
    h(
      'p.gain',
      gain(item, text => h('strong', text), ''),
    ),
    h('h3', item.advice),
    h('p', `${item.evidence}.`),
    whereText(run, item.where, 3),
    h('details', h('summary', 'How'), code(item)),
  ]);
  return list('ol.best', items);
}

export function codeBlock(text) {
  return h('pre', {tabindex: '0'}, h('code', text));
}

// The code, and below it the command that measures the gain, and what it measured before.
function code(item) {
  return [
    codeBlock(item.code),
    known(item.trial) && h('p.try', 'Try: ', h('code', item.trial)),
    known(item.tried) && h('p.tried', `Tried: ${item.tried}.`),
  ];
}
