// Files of pictures, as SVG and PNG.
import {button} from './blocks.js';
import {announce, h, put, svg} from './dom.js';

// What elements of a picture take from the style sheet. All but opacity are inherited.
const LOOKS = (
  'fill fill-opacity stroke stroke-opacity stroke-width stroke-dasharray paint-order opacity ' +
  'font-family font-size font-weight text-anchor dominant-baseline'
).split(' ');
const OF_PAGE = /^(class|style|href|tabindex|role|aria-.*|data-.*|on.*)$/;
const WIDEST = 8000; // pixels of a PNG file

// A picture with buttons that save it. `shown` contains the picture. A function draws one for files, with its legend.
/** @param {SVGSVGElement | (() => SVGSVGElement)} picture @param {string} title @param {Element} shown */
export function exportable(picture, title, shown = /** @type {Element} */ (picture)) {
  const saver = kind => button(kind, () => save(picture, title, kind), {'aria-label': `Save as ${kind}: ${title}`});
  return h('div.picture', h('div.saves', ['SVG', 'PNG'].map(saver)), shown);
}

async function save(picture, title, kind) {
  const source = standalone(picture),
    file = kind === 'SVG' ? new Blob([source.text], {type: 'image/svg+xml'}) : await pixels(source);
  const address = URL.createObjectURL(file);
  const stem = title
    .toLowerCase()
    .replace(/[^\p{L}\p{N}]+/gu, '-')
    .slice(0, 80);
  h('a', {href: address, download: `${stem}.${kind.toLowerCase()}`}).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000); // the browser reads it after the click
  announce(`Saved ${stem}.${kind.toLowerCase()}`);
}

// The text of an SVG file and its size, in the light theme on white, without links into the page.
function standalone(picture) {
  const page = document.documentElement.dataset,
    chosen = page.theme;
  page.theme = 'light'; // the browser does not draw before the theme is back
  const made = picture instanceof Function ? picture() : null,
    drawn = made ?? picture;
  if (made) document.body.append(made); // only elements of the page have a style
  const [width, height] = sizeOf(drawn),
    copy = styled(drawn);
  page.theme = chosen;
  made?.remove();
  put(copy, {width, height});
  copy.prepend(svg('rect', {width: '100%', height: '100%', fill: '#fff'}));
  return {text: new XMLSerializer().serializeToString(copy), width, height};
}

function sizeOf(picture) {
  const box = picture.viewBox.baseVal,
    shown = picture.getBoundingClientRect();
  return box?.width ? [box.width, box.height] : [shown.width, shown.height];
}

// A copy of an element, with its computed style as attributes where it differs from that of the parent.
function styled(element, above) {
  const style = getComputedStyle(element);
  if (style.display === 'none') return null;
  const copy = svg(element.tagName === 'a' ? 'g' : element.tagName);
  for (const {name: key, value} of element.attributes) if (!OF_PAGE.test(key)) copy.setAttribute(key, value);
  for (const key of LOOKS) {
    const value = style.getPropertyValue(key);
    if (value !== (key === 'opacity' ? '1' : above?.getPropertyValue(key))) copy.setAttribute(key, value);
  }
  for (const child of element.childNodes) {
    const kept =
      child instanceof SVGElement && child.tagName !== 'title' ? styled(child, style) : child.cloneNode(true);
    if (kept) copy.append(kept);
  }
  return copy;
}

// A PNG file with two pixels per unit.
async function pixels({text, width, height}) {
  const scale = Math.min(2, WIDEST / width),
    image = new Image(),
    paper = document.createElement('canvas').getContext('2d');
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`; // the CSP allows data:
  await image.decode();
  Object.assign(paper.canvas, {width: width * scale, height: height * scale});
  paper.drawImage(image, 0, 0, width * scale, height * scale);
  return new Promise(done => paper.canvas.toBlob(done, 'image/png'));
}
