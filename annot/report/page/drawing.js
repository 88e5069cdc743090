// Pictures from shapes. annot/report/charts/chart.py makes the shapes of charts, and documents their fields.

/** @param {{title: string, size: number[], shapes: any[][]}} chart */
function drawing({title: text, size: [width, height], shapes}) {
  const role = shapes.some(([, , , , link]) => link) ? 'group' : 'img';
  const attributes = {viewBox: `0 0 ${width} ${height}`, class: 'drawing', role, 'aria-label': text};
  return svg('svg', attributes, shapes.map(drawShape));
}

// A picture with its title and legend, for files: `swatch` draws the color of each of the keys, as [look, text].
function captioned(text, keys, swatch, {picture, size, look, below}) {
  const [width, height] = size;
  const columns = Math.max(1, Math.min(4, Math.floor(width / 260))),
    bottom = 34 + height + 28 * Math.ceil(keys.length / columns);
  return svg(
    'svg',
    {class: 'drawing', viewBox: `0 0 ${width} ${bottom + 30}`},
    svg('text', {class: 'title', x: 0, y: 20}, text),
    svg('g', {class: look, transform: 'translate(0 34)'}, picture),
    keys.map(([key, label], number) => {
      const x = ((number % columns) * width) / columns,
        y = 44 + height + 28 * Math.floor(number / columns);
      return [swatch(key, x, y), svg('text', {x: x + 22, y: y + 11}, label)];
    }),
    svg('text', {x: 0, y: bottom + 22}, below),
  );
}

function drawShape([kind, points, style, text, link, opacity, size, anchor, turn]) {
  const [[x, y], corner] = points;
  if (kind === 'line') return svg('path', {class: style, d: `M${points.join('L')}`});
  if (kind === 'text') {
    const turned = turn ? `rotate(${turn} ${x} ${y})` : null;
    return svg('text', {class: style, x, y, 'text-anchor': anchor, transform: turned}, text);
  }
  const tip = text ? svg('title', {}, text) : null,
    look = {class: style, 'fill-opacity': opacity};
  const one =
    kind === 'dot'
      ? svg('circle', {...look, cx: x, cy: y, r: size}, tip)
      : svg('rect', {...look, x, y, width: corner[0] - x, height: corner[1] - y}, tip);
  return link ? svg('a', {href: `#${link}`, 'aria-label': text}, one) : one;
}

// A chart in a panel. Its texts shrink with the window, so that narrow windows scroll it.
function chartPanel(chart) {
  const picture = drawing(chart),
    frame = h('div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': chart.title}, picture);
  return h('div', {class: 'panel chart'}, exportable(picture, chart.title, frame));
}

// Bars without axes: for each step the stacked times of its parts. With many steps, a bar is the longest of neighbors.
/** @param {string} text @param {[string, Float64Array][]} parts @param {number} first */
function stepBars(text, parts, first) {
  const steps = parts[0][1].length,
    totals = Array.from({length: steps}, (_, step) => parts.reduce((sum, [, values]) => sum + values[step], 0)),
    order = totals.map((_, step) => step).sort((a, b) => totals[b] - totals[a]);
  const every = Math.ceil(steps / 300),
    [width, height] = [1200, 90],
    wide = width / Math.ceil(steps / every),
    level = ns => height * (1 - ns / totals[order[0]]);
  const shapes = [];
  for (let bar = 0; bar * every < steps; bar++) {
    const step = order.find(one => Math.floor(one / every) === bar);
    let base = 0;
    for (const [part, values] of parts) {
      const corners = [
        [bar * wide, level(base + values[step])],
        [bar * wide + Math.min(0.84 * wide, 72), level(base)],
      ];
      const tip = `Step ${first + step}: ${part} ${duration(values[step])} of ${duration(totals[step])}`;
      shapes.push(['bar', corners, part, tip, '', 1]);
      base += values[step];
    }
  }
  const at = rank => `${duration(totals[order[rank]])} (step ${first + order[rank]})`;
  return [
    h(
      'p',
      {class: 'status'},
      `Median ${duration(totals[order[steps >> 1]])}, longest ${at(0)}, shortest ${at(steps - 1)}.`,
      every > 1 && ` A bar is the longest of ${every} steps.`,
    ),
    exportable(drawing({title: text, size: [width, height], shapes}), text),
  ];
}
