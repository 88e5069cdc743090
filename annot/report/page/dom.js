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

// Does what the key of an event stands for. `actions` has a function per key; letters are in lower case.
export function actOnKey(event, actions) {
  const act = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act();
}

// Does something at a key without others, unless the reader types a text.
export function onShortcut(key, act) {
  addEventListener('keydown', event => {
    const element = /** @type {Element} */ (event.target);
    if (!element.closest?.('input, select, textarea')) actOnKey(event, {[key]: act});
  });
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
