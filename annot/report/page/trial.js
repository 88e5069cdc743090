// Changes that annot try measured: their table, what to write, the layers that change, and why others are left.
import {codeBlock} from './advice.js';
import {hint, list, notesPanel, panel} from './blocks.js';
import {h, name} from './dom.js';
import {factTable} from './table.js';

export function trialView({trial, tables}) {
  const {verdict, heading, table, code, layers, notes} = trial,
    written = code.map(([title, text]) => [h('strong', title), codeBlock(text)]),
    all = tables && h('p', h('a', {href: '#compare'}, 'All layers'), ' of one run each, under the profiler');
  return [
    h('h1', verdict),
    h('p', heading),
    table && panel('Changes', changesTable(table)),
    written.length > 0 && panel('What to apply', list('ol.advice', written)),
    layers.length > 0 && panel('Layers that change most', list('ul.notes', layers), all),
    notesPanel('Notes', notes),
  ];
}

// What was measured before on the program of a profile.
export function triedPanel({table, notes}) {
  const whose = 'annot try measured these changes on the same program and device.';
  return panel('Tried changes', changesTable(table), notes.length > 0 && list('ul.notes', notes), hint(whose));
}

// Recommended changes are bold.
function changesTable({heads, rows}) {
  const looks = heads.map(([, minor]) => minor && 'minor'),
    titles = heads.map(([title]) => title);
  const lines = rows.map(([text, cells, recommended]) => [h(recommended ? 'strong' : 'span', name(text)), cells]);
  return factTable('Changes', titles, lines, looks);
}
