// DOM helpers. They insert texts of the profile as text nodes and attributes, never as markup.
const SVG = 'http://www.w3.org/2000/svg';

// Sets attributes, adds listeners (attributes such as `onclick`) and appends children.
export function put(element, attributes, children = []) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? '' : printable(String(value)));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : printable(String(child)));
  }
  return element;
}

// An element: h('p.hint', 'text') or h('a', {href: '#layers'}, 'Layers'). Attributes may be left out.
export function h(selector, ...parts) {
  return build(tag => document.createElement(tag), selector, parts);
}

export function svg(selector, ...parts) {
  return build(tag => document.createElementNS(SVG, tag), selector, parts);
}

function build(create, selector, parts) {
  const [tag, ...classes] = selector.split('.'),
    [first, ...children] = parts,
    attributes = first?.constructor === Object ? first : {};
  const look = classes.length ? {class: classes.join(' '), ...attributes} : attributes;
  return put(create(tag), look, attributes === first ? children : [first, ...children]);
}

// Escapes control characters, including those that change the text direction.
export function printable(text) {
  return text.replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g,
    char => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}

// A name from the profile. <bdi> isolates its text direction from the surrounding text.
export function name(text, className = 'name') {
  return text === '' ? null : h('bdi', {class: className, title: text}, text);
}

// A path, in parts that end with a separator. A path that does not fit loses its first parts: its end tells layers apart.
const SEPARATORS = /(?<=[./]|\u203a )(?=.)/u; // \u203a: ›
export function pathName(text) {
  const parts = text.split(SEPARATORS).map(part => h('span', part));
  if (parts.length < 2) return name(text);
  const element = h('bdi.name.path', {title: text}, parts);
  FITTING.observe(element);
  return element;
}

// In the next frame: hiding elements inside the callback resizes them, which Chromium reports as an error.
const FITTING = new ResizeObserver(entries =>
  requestAnimationFrame(() => entries.forEach(({target}) => fitPath(target))),
);
addEventListener('resize', () => document.querySelectorAll('.path.cut').forEach(wholePath));

function fitPath(element) {
  for (const part of [...element.children].slice(0, -1)) {
    if (element.scrollWidth <= element.clientWidth) return;
    if (part.hidden) continue;
    part.hidden = true;
    element.classList.add('cut');
  }
}

function wholePath(element) {
  element.classList.remove('cut');
  for (const part of element.children) part.hidden = false;
}

// Announces a text to screen readers.
export function announce(text) {
  document.getElementById('announcement').textContent = text;
}

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
  return h(
    kind,
    items.map(item => h('li', item)),
  );
}

export function notesPanel(title, notes) {
  return notes.length > 0 && panel(title, list('ul.notes', notes));
}

// Terms and their values.
export function terms(kind, entries) {
  return h(
    kind,
    entries.map(([term, ...values]) => [h('dt', term), h('dd', values)]),
  );
}

// Terms and their values in a line.
export function pairs(entries) {
  return h(
    'dl.pairs',
    entries.map(([term, value, more]) => h('div', h('dt', term), h('dd', value, more && ` (${more})`))),
  );
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

// Does what the key of an event stands for. `actions` has a function per key; letters are in lower case.
export function actOnKey(event, actions) {
  const act = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act();
}

// Keeps a tooltip at a point of the window inside of an element that is `width` wide.
export function placeTip(tip, box, x, width = box.width) {
  tip.style.left = `${Math.max(0, Math.min(x - box.left + 12, width - tip.offsetWidth))}px`;
}

let timer = 0;
// Runs an action 80 ms after the last call, that is after the user stops typing.
export function debounce(action) {
  clearTimeout(timer);
  timer = setTimeout(action, 80);
}
