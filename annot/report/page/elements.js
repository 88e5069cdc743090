// Elements that several views share: layers as links, and what the times of a view are.
import {hint} from './blocks.js';
import {h, name, pathName} from './dom.js';
import {grouped} from './model.js';
import {foldedPlace, isFold, lineAt} from './places.js';
import {count, plural} from './units.js';

// Says whether the times of a view are those of one step.
export function perStep(run) {
  const steps = run.meta.per_step;
  return steps ? hint(`Times are per step: the mean of ${plural(steps, 'step')} without warm-up.`) : null;
}

export function layerHref(place) {
  return `#layer/${place}`;
}

// A line or fold in a table: a link with its class, and the number of its layers.
export function layerCell(run, place, text = lineAt(run, place).title) {
  const line = lineAt(run, place);
  return [
    h('a', {href: layerHref(place)}, pathName(text)),
    ' ',
    line.module && name(line.module, 'module'),
    foldSize(line),
  ];
}

export function foldSize({members}) {
  return members?.length > 0 && h('span.count', ` ×${count(members.length)}`);
}

// A link to a layer in a sentence. A number does not say what the layer is, so its class follows.
function layerLink(run, place) {
  const line = lineAt(run, place),
    bare = /^(.*[./])?[\d*]+$/.test(line.title);
  return [
    h('a', {href: layerHref(place)}, pathName(line.title)),
    bare && line.module && [' ', name(line.module, 'module')],
    foldSize(line),
  ];
}

// The layers that advice is about, as places or names: at most `most`, and how many more there are.
export function whereText(run, where, most) {
  const links = where.map(layer => (typeof layer === 'string' ? pathName(layer) : layerLink(run, layer))),
    more = links.length - most;
  const listed = links.slice(0, most).map((link, at) => [at ? ', ' : '', link]);
  return links.length > 0 && h('p.where', 'Where: ', listed, more > 0 && ` and ${count(more)} more`);
}

// The layers around a line or fold, each as a link.
export function crumbs(run, line) {
  const above = [];
  for (let at = line.parent; at >= 0; at = lineAt(run, at).parent) above.unshift(at);
  const links = above.map(place => [' › ', h('a', {href: layerHref(place)}, name(lineAt(run, place).label))]);
  return h('nav.crumbs', {'aria-label': 'Parent layers'}, h('a', {href: '#layers'}, 'Layers'), links);
}

// Rows of places and phases with those of a fold as one, and the rows inside a row.
export function foldedRows(run, rows) {
  const isMember = ({place}) => foldedPlace(run, place) !== place,
    isInner = ({place}) => isFold(run, place) && foldedPlace(run, lineAt(run, place).members[0]) !== place,
    members = grouped(rows.filter(isMember), ({place, phase}) => `${foldedPlace(run, place)} ${phase}`),
    shown = rows.filter(row => !isMember(row) && !isInner(row));
  return {shown, inside: ({place, phase}) => members.get(`${place} ${phase}`)};
}
