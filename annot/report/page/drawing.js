// Pictures from shapes. annot/report/charts/chart.py makes the shapes of charts, and documents their fields.
import {h, svg} from './dom.js';
import {exportable} from './save.js';

/** @param {{title: string, size: number[], shapes: any[][]}} chart */
function drawing({title, size: [width, height], shapes}) {
  const role = shapes.some(([, , , , link]) => link) ? 'group' : 'img';
  return svg('svg.drawing', {viewBox: `0 0 ${width} ${height}`, role, 'aria-label': title}, shapes.map(drawShape));
}

const PEN = document.createElement('canvas').getContext('2d');

export function textWidth(text, font) {
  PEN.font = font;
  return PEN.measureText(text).width;
}

// A picture with its title and legend, for files: `swatch` draws the color of each of the keys, as [look, text].
export function captioned(text, keys, swatch, {picture, size, look, below}) {
  const [width, height] = size,
    columns = Math.max(1, Math.min(4, Math.floor(width / 260))),
    bottom = 34 + height + 28 * Math.ceil(keys.length / columns);
  const legend = keys.map(([key, label], number) => {
    const x = ((number % columns) * width) / columns,
      y = 44 + height + 28 * Math.floor(number / columns);
    return [swatch(key, x, y), svg('text', {x: x + 22, y: y + 11}, label)];
  });
  return svg(
    'svg.drawing',
    {viewBox: `0 0 ${width} ${bottom + 30}`},
    svg('text.title', {x: 0, y: 20}, text),
    svg('g', {class: look, transform: 'translate(0 34)'}, picture),
    legend,
    svg('text', {x: 0, y: bottom + 22}, below),
  );
}

function drawShape([kind, points, style, text, link, opacity, size, anchor, turn]) {
  const [[x, y], corner] = points;
  if (kind === 'line') return svg('path', {class: style, d: `M${points.join('L')}`});
  if (kind === 'text') {
    const transform = turn ? `rotate(${turn} ${x} ${y})` : null;
    return svg('text', {class: style, x, y, 'text-anchor': anchor, transform}, text);
  }
  const tip = text ? svg('title', text) : null,
    look = {class: style, 'fill-opacity': opacity};
  const shape =
    kind === 'dot'
      ? svg('circle', {...look, cx: x, cy: y, r: size}, tip)
      : svg('rect', {...look, x, y, width: corner[0] - x, height: corner[1] - y}, tip);
  return link ? svg('a', {href: `#${link}`, 'aria-label': text}, shape) : shape;
}

// A chart in a panel. Its texts shrink with the window, so that narrow windows scroll it.
export function chartPanel(chart) {
  const picture = drawing(chart),
    frame = h('div.scroll', {tabindex: '0', role: 'region', 'aria-label': chart.title}, picture);
  return h('div.panel.chart', exportable(picture, chart.title, frame));
}

// Bars without axes. Each has parts on top of each other, as [class, length, tooltip], and may be a link as a whole.
/** @param {string} title @param {{parts: any[][], link?: string, tip?: string}[]} bars */
export function stackedBars(title, bars) {
  const [width, height] = [1200, 90],
    wide = width / bars.length,
    thick = Math.min(0.84 * wide, 72),
    lengthOf = parts => parts.reduce((sum, [, length]) => sum + length, 0),
    longest = Math.max(1, ...bars.map(({parts}) => lengthOf(parts)));
  const corner = (at, length) => [at, height * (1 - length / longest)].map(value => Number(value.toFixed(2)));
  const shapes = bars.flatMap(({parts, link, tip}, number) => {
    const at = number * wide;
    let base = 0;
    const stack = parts.map(([look, length, text]) => {
      const corners = [corner(at, base + length), corner(at + thick, base)];
      base += length;
      return ['bar', corners, look, text, '', 1];
    });
    const whole = ['bar', [corner(at, base), corner(at + thick, 0)], 'other', tip, link, 0]; // over all parts
    return link ? [...stack, whole] : stack;
  });
  return exportable(drawing({title, size: [width, height], shapes}), title);
}
