// DOM helpers. They insert texts of the profile as text nodes and attributes, never as markup.
const SVG = 'http://www.w3.org/2000/svg';

function put(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : printable(String(value)));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : printable(String(child)));
  }
  return element;
}

function h(tag, attributes, ...children) {
  return put(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return put(document.createElementNS(SVG, tag), attributes, children);
}

// Escapes control characters, including those that change the text direction.
function printable(text) {
  return text.replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g,
    char => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}

// A name from the profile. <bdi> isolates its text direction from the surrounding text.
function name(text, className = 'name') {
  return text === '' ? null : h('bdi', {class: className, title: text}, text);
}

// A path, in parts that end with a separator. A path that does not fit loses its first parts: its end tells layers apart.
const SEPARATORS = /(?<=[./]|\u203a )(?=.)/u; // \u203a: ›
function pathName(text) {
  const parts = text.split(SEPARATORS).map(part => h('span', {}, part));
  if (parts.length < 2) return name(text);
  const element = h('bdi', {class: 'name path', title: text}, parts);
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

function withWidth(element, width) {
  element.style.width = `${Math.max(0, Math.min(100, width))}%`;
  return element;
}

// Announces a text to screen readers.
function announce(text) {
  document.getElementById('announcement').textContent = text;
}

function field(label, control) {
  return h('label', {class: 'field'}, h('span', {}, label), control);
}

function choice(id, options, value, change) {
  const select = h('select', {id, onchange: event => change(event.target.value)});
  for (const [key, text] of options) select.append(h('option', {value: key, selected: key === value}, text));
  return select;
}

// A checkbox that shows the names in an element in full instead of cutting them to one line.
function wholeNames(holder) {
  const box = h('input', {
    type: 'checkbox',
    class: 'whole-names',
    onchange: event => holder.classList.toggle('whole', event.target.checked),
  });
  return h('label', {class: 'check'}, box, ' Full names');
}

function panel(title, ...children) {
  const id = `panel-${++panel.count}`;
  return h('section', {class: 'panel', 'aria-labelledby': id}, h('h2', {id}, title), ...children);
}
panel.count = 0;

function emptyText(text) {
  return h('p', {class: 'nothing'}, text);
}

let timer = 0;
// Runs an action 80 ms after the last call, that is after the user stops typing.
function debounce(action) {
  clearTimeout(timer);
  timer = setTimeout(action, 80);
}
