// Files of pictures: an SVG element as SVG and PNG, a canvas as PNG.

// What elements of a picture take from the style sheet. All but opacity are inherited.
const LOOKS = [
  'fill',
  'fill-opacity',
  'stroke',
  'stroke-width',
  'stroke-dasharray',
  'paint-order',
  'opacity',
  'font-family',
  'font-size',
  'font-weight',
  'text-anchor',
  'dominant-baseline',
];
const OF_PAGE = /^(class|style|href|tabindex|role|aria-.*|data-.*|on.*)$/;
const WIDEST = 8000; // pixels of a PNG file

// A picture with buttons that save it. `shown` contains the picture. A function draws one for files, with its legend.
/** @param {SVGSVGElement | HTMLCanvasElement | (() => SVGSVGElement)} picture @param {string} title @param {Element} shown */
function exportable(picture, title, shown = /** @type {Element} */ (picture)) {
  const kinds = picture instanceof HTMLCanvasElement ? ['PNG'] : ['SVG', 'PNG'];
  const button = kind =>
    h(
      'button',
      {type: 'button', 'aria-label': `Save as ${kind}: ${title}`, onclick: () => save(picture, title, kind)},
      kind,
    );
  return h('div', {class: 'picture'}, h('div', {class: 'saves'}, kinds.map(button)), shown);
}

async function save(picture, title, kind) {
  const source = picture instanceof HTMLCanvasElement ? picture : standalone(picture);
  const asText = kind === 'SVG' && !(source instanceof HTMLCanvasElement),
    file = asText ? new Blob([source.text], {type: 'image/svg+xml'}) : await pixels(source);
  const address = URL.createObjectURL(file);
  const stem = title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, '-').slice(0, 80);
  h('a', {href: address, download: `${stem}.${kind.toLowerCase()}`}).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000); // the browser reads it after the click
  announce(`Saved ${stem}.${kind.toLowerCase()}`);
}

// The text of an SVG file and its size, in the light theme on white, without links into the page.
function standalone(picture) {
  const made = picture instanceof Function ? picture() : null,
    drawn = made ?? picture,
    page = document.documentElement.dataset,
    chosen = page.theme;
  if (made) document.body.append(made); // only elements of the page have a style
  page.theme = 'light'; // the browser does not draw before the theme is back
  const [width, height] = sizeOf(drawn),
    copy = styled(drawn);
  page.theme = chosen;
  made?.remove();
  put(copy, {width, height}, []);
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
    const kept = child instanceof SVGElement && child.tagName !== 'title' ? styled(child, style) : child.cloneNode(true);
    if (kept) copy.append(kept);
  }
  return copy;
}

// A PNG file: an SVG picture with two pixels per unit, a canvas as it is on the screen.
async function pixels(source) {
  const paper = document.createElement('canvas').getContext('2d');
  const fill = (width, height, color) => {
    Object.assign(paper.canvas, {width, height});
    paper.fillStyle = color;
    paper.fillRect(0, 0, width, height);
  };
  if (source instanceof HTMLCanvasElement) {
    fill(source.width, source.height, getComputedStyle(source).getPropertyValue('--surface').trim());
    paper.drawImage(source, 0, 0);
  } else {
    const {text, width, height} = source,
      scale = Math.min(2, WIDEST / width),
      image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`; // the CSP allows data:
    await image.decode();
    fill(width * scale, height * scale, '#fff');
    paper.drawImage(image, 0, 0, width * scale, height * scale);
  }
  return new Promise(done => paper.canvas.toBlob(done, 'image/png'));
}
