// What views are made of: buttons, fields, panels, lists, cards and bars.
import {h} from './dom.js';

export function button(text, act, attributes = {}) {
  return h('button', {type: 'button', onclick: act, ...attributes}, text);
}

// A button that shows all rows of a list of which the page shows the first.
export function showAll(number, what, act) {
  return button(`Show all ${number} ${what}`, act, {class: 'more'});
}

export function field(label, control) {
  return h('label.field', h('span', label), control);
}

export function choice(id, options, value, change) {
  const select = h('select', {id, onchange: event => change(event.target.value)});
  for (const [key, text] of options) select.append(h('option', {value: key, selected: key === value}, text));
  return select;
}

// A choice among values of the profile, or all of them.
export function choiceOf(label, id, all, values, value, change) {
  return field(label, choice(id, [['', all], ...values.map(one => [one, one])], value, change));
}

export function searchField(value, change, more = {}) {
  const listens = {'aria-keyshortcuts': '/', oninput: event => change(event.target.value)};
  return field('Search', h('input', {type: 'search', id: 'search', value, ...listens, ...more}));
}

export function filterForm(...fields) {
  return h('form.filters', {role: 'search', onsubmit: event => event.preventDefault()}, fields);
}

// A checkbox that shows the names in an element in full instead of cutting them to one line.
export function wholeNames(holder) {
  const onchange = event => holder.classList.toggle('whole', event.target.checked);
  return h('label.check', h('input.whole-names', {type: 'checkbox', onchange}), ' Full names');
}

let panels = 0;
export function panel(title, ...children) {
  const id = `panel-${++panels}`;
  return h('section.panel', {'aria-labelledby': id}, h('h2', {id}, title), ...children);
}

export function emptyText(text) {
  return h('p.nothing', text);
}

// A view that has nothing to show.
export function emptyView(title, text) {
  return [h('h1', title), emptyText(text)];
}

export function hint(...texts) {
  return h('p.hint', texts);
}

// A list with an element for each item; `kind` such as 'ol.top'.
export function list(kind, items) {
  const elements = items.map(item => h('li', item));
  return h(kind, elements);
}

export function notesPanel(title, notes) {
  return notes.length > 0 && panel(title, list('ul.notes', notes));
}

// Terms and their values.
export function terms(kind, entries) {
  const elements = entries.map(([term, ...values]) => [h('dt', term), h('dd', values)]);
  return h(kind, elements);
}

// Terms and their values in a line.
export function pairs(entries) {
  const elements = entries.map(([term, value, more]) => h('div', h('dt', term), h('dd', value, more && ` (${more})`)));
  return h('dl.pairs', elements);
}

export function cards(entries) {
  const card = ([term, value, ...more]) => {
    const small = more.flat().filter(Boolean);
    return h('div.card', h('dt', term), h('dd', value, small.length > 0 && h('small', small)));
  };
  return h('dl.cards', entries.map(card));
}

// A part of the table that scrolls by itself.
export function scroller(label, ...children) {
  return h('div.scroll', {tabindex: '0', role: 'group', 'aria-label': label}, children);
}

// A word with its color.
export function colorKey(look, text = look) {
  return h('span', {class: `key ${look}`}, text);
}

// A bar of parts, as pairs of class and length; `longest` is as wide as the bar.
export function bar(parts, longest, kind = 'bar') {
  const spans = parts.map(([look, length]) => length > 0 && span(look, (100 * length) / longest));
  return h('div', {class: kind, 'aria-hidden': 'true'}, spans);
}

function span(look, width) {
  const element = h('span', {class: look});
  element.style.width = `${Math.max(0, Math.min(100, width))}%`;
  return element;
}
