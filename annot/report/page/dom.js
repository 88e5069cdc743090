// Elements. Texts of the profile get into the page through here, as text nodes and attributes, never as markup.
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

// Text that does nothing but appear: control characters are spelt out, also those that turn the direction of text.
function printable(text) {
  return text.replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g,
    char => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}

// A name of the profile, whose direction does not spread to what stands beside it.
function name(text, className = 'name') {
  return text === '' ? null : h('bdi', {class: className, title: text}, text);
}

// A path, whose end says more than its begin: if there is no room, it is cut before its last characters.
const TAIL = 18;
function pathName(text) {
  if (text.length <= TAIL) return name(text);
  const end = [...text].slice(-TAIL).join('');
  const parts = [text.slice(0, text.length - end.length), end].map(part => h('span', {}, part));
  return h('bdi', {class: 'name path', title: text}, parts);
}

function sized(element, width) {
  element.style.width = `${Math.max(0, Math.min(100, width))}%`;
  return element;
}

function say(text) {
  document.getElementById('said').textContent = text;
}

function field(label, control) {
  return h('label', {class: 'field'}, h('span', {}, label), control);
}

function choice(id, options, value, change) {
  const select = h('select', {id, onchange: event => change(event.target.value)});
  for (const [key, text] of options) select.append(h('option', {value: key, selected: key === value}, text));
  return select;
}

// Lets the names in an element be cut to one line, or shows them whole.
function wholeNames(holder) {
  const box = h('input', {
    type: 'checkbox',
    class: 'whole-names',
    onchange: event => holder.classList.toggle('whole', event.target.checked),
  });
  return h('label', {class: 'check'}, box, ' Whole names');
}

function panel(title, ...children) {
  const id = `panel-${++panel.count}`;
  return h('section', {class: 'panel', 'aria-labelledby': id}, h('h2', {id}, title), ...children);
}
panel.count = 0;

function nothing(text) {
  return h('p', {class: 'nothing'}, text);
}

let timer = 0;
function later(work) {
  // what follows typing waits for its end
  clearTimeout(timer);
  timer = setTimeout(work, 80);
}
