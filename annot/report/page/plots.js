// Charts as SVG. Points are links with their values as label; bars have tooltips.
// The rules of axes are those of annot/report/charts/chart.py, and the same tests run over both.

// The width of a chart in pixels. It follows the window, so that SVG texts keep the size of other texts.
function chartWidth() {
  return Math.max(320, Math.min(1200, innerWidth - 64));
}

// Powers of ten as ticks, with 2 and 5 between them if there are few, or even ticks for less than a decade.
function decades(low, high) {
  const first = Math.floor(Math.log10(low)),
    powers = Array.from({length: Math.ceil(Math.log10(high)) - first + 1}, (_, place) => 10 ** (first + place));
  const factors = powers.length <= 4 ? [1, 2, 5] : [1];
  const found = powers.flatMap(power => factors.map(factor => factor * power)).filter(one => one >= low && one <= high);
  return found.length > 2 ? found : evenTicks(low, high, 6);
}

// Evenly spaced round ticks.
function evenTicks(low, high, parts) {
  const raw = (high - low) / parts,
    power = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 5, 10].find(factor => factor * power >= raw) * power,
    first = Math.ceil(low / step);
  return Array.from({length: Math.floor((high / step) * 1.0001) - first + 1}, (_, mark) => (first + mark) * step);
}

// The label of a tick, without trailing zeros.
function round(number) {
  return amount(number).replace(/\.0+(?= |$)/, '') || '0';
}

function label(x, y, text, anchor = 'middle', className = 'tick') {
  return svg('text', {x, y, 'text-anchor': anchor, class: className}, text);
}

// The roofs of the device, one for each precision in use: the memory slope and the flat compute peak.
function roofs(peaks, points) {
  if (!peaks) return [];
  const used = new Set(points.map(point => point.precision));
  const named = Object.entries(peaks.flops);
  const shown = named.filter(([precision]) => precision === 'any' || used.has(precision));
  return (shown.length ? shown : named.slice(0, 1)).map(([precision, flops]) => ({
    precision,
    flops,
    bandwidth: peaks.bandwidth,
  }));
}

function rooflinePlot(run, points) {
  const lines = roofs(run.peaks, points),
    width = chartWidth(),
    height = 470,
    box = {left: 70, right: 20, top: 20, bottom: 46};
  const ridges = lines.filter(one => one.bandwidth).map(one => one.flops / one.bandwidth);
  const xs = [...points.map(one => one.intensity), ...ridges],
    ys = [...points.map(one => one.flops_per_s), ...lines.map(one => one.flops)];
  const low = {x: Math.min(...xs) / 2, y: Math.min(...ys) / 3},
    high = {x: Math.max(...xs) * 2, y: Math.max(...ys) * 2};
  const scale = (from, to, begin, end) => value =>
    begin + (Math.log(value / from) / Math.log(to / from)) * (end - begin);
  const x = scale(low.x, high.x, box.left, width - box.right),
    y = scale(low.y, high.y, height - box.bottom, box.top);
  const longest = Math.max(1, ...points.map(one => one.time_ns));
  const grid = [
    decades(low.x, high.x).map(mark => [
      svg('line', {class: 'grid', x1: x(mark), x2: x(mark), y1: box.top, y2: height - box.bottom}),
      label(x(mark), height - box.bottom + 16, round(mark)),
    ]),
    decades(low.y, high.y).map(mark => [
      svg('line', {class: 'grid', x1: box.left, x2: width - box.right, y1: y(mark), y2: y(mark)}),
      label(box.left - 6, y(mark) + 4, round(mark), 'end'),
    ]),
  ];
  const roof = lines.map(one => {
    const corner = one.bandwidth ? Math.max(one.flops / one.bandwidth, low.x) : low.x;
    const begin = one.bandwidth ? Math.max(low.x, low.y / one.bandwidth) : low.x;
    const left = y(Math.min(one.flops, begin * (one.bandwidth ?? Infinity))),
      flat = y(one.flops);
    const path = `M${x(begin)},${left}L${x(corner)},${flat}L${x(high.x)},${flat}`;
    return [
      svg('path', {class: 'roof', d: path}),
      label(width - box.right - 4, y(one.flops) - 6, `${one.precision} ${amount(one.flops, 'FLOP/s')}`, 'end'),
    ];
  });
  const dots = [...points]
    .sort((a, b) => b.time_ns - a.time_ns)
    .map(one => {
      const speed = `${amount(one.flops_per_s, 'FLOP/s')} at ${amount(one.intensity, 'FLOP/B')}`;
      const reached = `${speed}, ${duration(one.time_ns)}`;
      const text = `${one.title} ${one.module} ${one.phase}: ${reached}${one.bound ? `, bound by ${one.bound}` : ''}`;
      return svg(
        'a',
        {href: `#layer/${one.place}`, 'aria-label': text},
        svg(
          'circle',
          {
            class: `dot ${one.phase}`,
            cx: x(one.intensity),
            cy: y(one.flops_per_s),
            r: 4 + 10 * Math.sqrt(one.time_ns / longest),
          },
          svg('title', {}, text),
        ),
      );
    });
  return h(
    'div',
    {class: 'scroll plot'},
    svg(
      'svg',
      {viewBox: `0 0 ${width} ${height}`, role: 'group', 'aria-label': 'Roofline: FLOP per second over FLOP per byte'},
      grid,
      roof,
      dots,
      label((box.left + width) / 2, height - 8, 'Intensity, FLOP per byte', 'middle', 'axis'),
      label(box.left - 58, box.top - 6, 'FLOP/s', 'start', 'axis'),
    ),
  );
}

// Stacked bars of the values of each step. With many steps, a bar shows the longest of a group of neighbours.
function stepChart(series, first, warm) {
  const steps = series[0].values.length,
    width = chartWidth(),
    height = 260,
    box = {left: 64, right: 10, top: 14, bottom: 34};
  const group = Math.ceil(steps / Math.floor(width / 3)),
    bars_ = Math.ceil(steps / group);
  const totals = Array.from({length: steps}, (_, step) =>
    series.reduce((sum, one) => sum + (one.values[step] ?? 0), 0),
  );
  const highest = Math.max(1, ...totals),
    unit = unitFor(totals);
  const y = value => height - box.bottom - (value / highest) * (height - box.bottom - box.top);
  const wide = (width - box.left - box.right) / bars_,
    thick = Math.max(0.5, Math.min(wide * 0.84, 72));
  const marks = evenTicks(0, highest / unit.ns, 4).map(mark => [
    svg('line', {class: 'grid', x1: box.left, x2: width - box.right, y1: y(mark * unit.ns), y2: y(mark * unit.ns)}),
    label(box.left - 6, y(mark * unit.ns) + 4, mark.toLocaleString('en-US', {maximumFractionDigits: 9}), 'end'),
  ]);
  const every = Math.ceil(bars_ / (width / 100));
  const columns = Array.from({length: bars_}, (_, bar) => {
    let step = bar * group;
    for (let other = step; other < Math.min(steps, step + group); other++)
      if (totals[other] > totals[step]) step = other;
    const parts = series.map(one => [one.title, one.values[step] ?? 0]).filter(([, ns]) => ns > 0);
    const times = parts.map(([title_, ns]) => `${title_} ${duration(ns)}`).join(', ');
    const text = `Step ${first + step}: ${times}${warm[step] ? ' (warm-up)' : ''}`;
    let base = 0;
    const x = box.left + bar * wide;
    return svg(
      'g',
      {class: warm[step] ? 'warm' : null},
      svg('title', {}, text),
      parts.map(([title_, ns]) => {
        const rect = svg('rect', {
          class: `fill ${title_.replace(/[^a-z]/g, '')}`,
          x: x + (wide - thick) / 2,
          width: thick,
          y: y(base + ns),
          height: Math.max(0, y(base) - y(base + ns)),
        });
        base += ns;
        return rect;
      }),
      bar % every === 0 && label(x + wide / 2, height - box.bottom + 16, count(first + bar * group)),
    );
  });
  const hint = group > 1 ? h('p', {class: 'hint'}, `Each bar is the longest of ${group} steps.`) : null;
  return h(
    'div',
    {},
    h(
      'p',
      {class: 'legend'},
      series.map(one => h('span', {class: `key ${one.title.replace(/[^a-z]/g, '')}`}, one.title)),
    ),
    h(
      'div',
      {class: 'scroll plot'},
      svg(
        'svg',
        {viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': `Time in each of ${steps} steps, ${unit.name}`},
        marks,
        columns,
        label(box.left - 58, 10, unit.name, 'start', 'axis'),
        label(width / 2, height - 4, 'Step', 'middle', 'axis'),
      ),
    ),
    hint,
  );
}
