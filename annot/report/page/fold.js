// Repeated layers in one view: sums, how the layers differ, the time of each, layers inside, kernels and steps.
function foldView(run, place) {
  const fold = lineAt(run, place),
    {numbers} = withFolds(run, measured(run, {...NOTHING}), NOTHING);
  return [
    crumbs(run, fold),
    h('h1', {}, name(fold.layer), ' ', name(fold.module, 'module'), foldSize(fold)),
    perStep(run),
    panel('Times of the layers', spreadTable(fold, numbers)),
    panel('Time of each layer', memberBars(run, fold, numbers)),
    h(
      'div',
      {class: 'columns'},
      panel('Layers', timesTable(run, 'Layers', fold.members, numbers, one => title(lineAt(run, one)))),
      childrenOf(run, place),
    ),
    kernelsOf(run, place),
    layerSteps(run, fold),
    h('p', {}, h('a', {href: `#icicle/${place}`}, 'Show in the icicle')),
  ];
}

// Sum, median, slowest layer and spread, in each phase and in all.
function spreadTable(fold, numbers) {
  const phases = [...PHASES.filter(phase => known(numbers[fold.place][phase])), 'total'],
    spreads = phases.map(phase => spreadOf(fold, fold.members.map(place => ({total: numbers[place][phase]}))));
  const slowest = ({slowest: ns, number}) =>
    known(ns) && [duration(ns), ' (', h('a', {href: partLink(fold.members[number])}, fold.indices[number]), ')'];
  const lines = [
    ['Total', phases.map(phase => duration(numbers[fold.place][phase]))],
    [titleOf('tree', 'median'), spreads.map(one => duration(Math.round(one.median)))],
    [`${titleOf('tree', 'slowest')} (${titleOf('tree', 'index').toLowerCase()})`, spreads.map(slowest)],
    [titleOf('tree', 'iqr'), spreads.map(one => duration(Math.round(one.iqr)))],
  ];
  return h(
    'div',
    {class: 'scroll', tabindex: '0', role: 'group', 'aria-label': 'Times of the layers'},
    h(
      'table',
      {class: 'facts', 'aria-label': 'Times of the layers'},
      h(
        'thead',
        {},
        h(
          'tr',
          {},
          h('td'),
          phases.map(phase =>
            h('th', {scope: 'col', class: 'number'}, h('span', {class: PHASES.includes(phase) && `key ${phase}`}, phase)),
          ),
        ),
      ),
      h(
        'tbody',
        {},
        lines.map(([text, cells]) =>
          h('tr', {}, h('th', {scope: 'row', class: 'text'}, text), cells.map(cell => h('td', {class: 'number'}, cell))),
        ),
      ),
    ),
  );
}

// A bar for each layer, with its phases on top of each other. Each is a link to the layer.
function memberBars(run, fold, numbers) {
  const [width, height] = [1200, 90],
    wide = width / fold.members.length,
    thick = Math.min(0.84 * wide, 72),
    longest = Math.max(1, ...fold.members.map(place => numbers[place].total ?? 0)),
    rects = new Map(),
    links = [];
  fold.members.forEach((place, number) => {
    const one = numbers[place],
      phases = PHASES.filter(phase => one[phase]),
      parts = phases.length ? phases.map(phase => [phase, one[phase]]) : [[one.kind, one.total ?? 0]];
    const tip = [title(run.lines[place]), ...parts.map(([phase, ns]) => `${phase} ${duration(ns)}`)].join(', ');
    const at = number * wide,
      level = ns => height * (1 - ns / longest);
    let base = 0;
    for (const [phase, ns] of parts) {
      const corner = [at, level(base + ns)].map(one => one.toFixed(2));
      rects.set(phase, `${rects.get(phase) ?? ''}M${corner}h${thick.toFixed(2)}v${((height * ns) / longest).toFixed(2)}h${(-thick).toFixed(2)}z`);
      base += ns;
    }
    links.push(['bar', [[at, level(base)], [at + thick, height]], 'other', tip, `layer/${place}`, 0]); // over all phases
  });
  const text = `Time of each layer of ${fold.layer}`;
  const picture = drawing({title: text, size: [width, height], shapes: links});
  picture.prepend(...[...rects].map(([phase, d]) => svg('path', {class: `fill ${phase}`, d})));
  return exportable(picture, text);
}
