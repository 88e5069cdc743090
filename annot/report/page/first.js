// The first screen of the summary: the verdict, the devices, the parts of the step time, and the best advice.
const BEST = 3;
const BUSY = ['tensor_cores', 'kernels', 'collectives', 'copies'];
// Lines over the colors of idle parts, which also differ in print and in gray.
const HATCHES = {
  data: 'M0 8 8 0',
  launch: 'M4 0V8',
  host: 'M0 4H8',
  synchronisation: 'M0 0 8 8',
  allocation: 'M0 4H8M4 0V8',
  unrecorded: '',
};

function firstScreen(run, rows) {
  return [
    run.meta.cut && h('p', {class: 'cut'}, run.meta.cut),
    run.verdict ? h('h1', {class: 'verdict'}, run.verdict) : h('h1', {}, 'Summary'),
    machineLine(run),
    stepParts(run, rows),
    bestAdvice(run),
  ];
}

// The devices, the software and the steps of a profile.
function machineLine(run) {
  const system = records(run.summary).filter(row => row.section === 'system');
  const texts = item => system.filter(row => row.item === item);
  const {meta} = run;
  const facts = [
    ...texts('device').map(row => (row.count > 1 ? `${row.count} × ${row.text}` : row.text)),
    ...texts('cpu').map(row => row.text),
    ...texts('software').map(row => row.text),
    meta.producer,
    meta.steps ? `${plural(meta.steps, 'step')} (${meta.steps_found_by})` : `no steps, because ${meta.steps_missing}`,
  ].filter(Boolean);
  const shown = [...new Set(facts)]; // annot records its profiles itself
  return shown.length > 0 && h('ul', {class: 'machine', 'aria-label': 'Devices and software'}, shown.map(one => h('li', {}, name(one))));
}

// One bar: disjoint parts that add up to the wall-clock time of the steps, and their legend.
function stepParts(run, rows) {
  const wall = rows.get('time wall');
  if (!wall?.ns) return null;
  const parts = Object.entries(run.shares)
    .map(([key, [, meaning]]) => ({key, meaning, ...rows.get(`time ${key}`)}))
    .filter(one => one.ns > 0);
  const busy = parts.filter(one => BUSY.includes(one.key)),
    idle = parts.filter(one => !BUSY.includes(one.key));
  const groups =
    run.time === 'gpu_ns'
      ? [
          ['GPU busy', busy],
          ['GPU idle', idle],
        ]
      : [['', parts]];
  const heading_ = run.meta.steps ? 'Step time' : 'Time of the run',
    whole = `100% is ${wholeText(run, wall)}.`;
  return panel(
    heading_,
    exportable(() => partsPicture(run, parts, heading_, whole), heading_, partsBar(run, parts)),
    h('div', {class: 'groups'}, groups.filter(([, of]) => of.length).map(([heading_, of]) => partsLegend(run, heading_, of))),
    h('p', {class: 'hint'}, whole),
  );
}

function wholeText(run, wall) {
  const {meta} = run;
  let of = run.time === 'gpu_ns' ? 'the time from the first to the last kernel' : 'the time of the run';
  if (meta.steps) of = `the sum of the ${meta.step_kinds.length > 1 ? `${meta.step_kind} ` : ''}steps`;
  const warmup = meta.step_ns?.warmup || run.without_warmup ? ' without warm-up' : '';
  return `${duration(wall.ns)}, ${of}${warmup}${wall.count > 1 ? `, added up over ${wall.count} devices` : ''}`;
}

function partWords(run, key) {
  return run.shares[key][0];
}

// Rectangles of SVG, because browsers print these without background graphics.
function partRects(key, x, width, height) {
  const place = {x, width, height};
  return [
    svg('rect', {class: `fill part-${key}`, ...place}),
    HATCHES[key] && svg('rect', {fill: `url(#hatch-${key})`, ...place}),
  ];
}

function partHatches() {
  return svg(
    'defs',
    {},
    Object.entries(HATCHES).map(([key, d]) =>
      svg(
        'pattern',
        {id: `hatch-${key}`, width: 8, height: 8, patternUnits: 'userSpaceOnUse'},
        svg('path', {d, class: 'idle-lines'}),
      ),
    ),
  );
}

// The bar with its title and legend, for files.
function partsPicture(run, parts, text, whole) {
  const [width, height] = [1200, 34];
  const swatch = (key, x, y) => svg('g', {transform: `translate(${x} ${y})`}, partRects(key, 0, 14, 14));
  let end = 0;
  const rects = parts.map(one => {
    const start = end;
    end += width * one.share;
    return partRects(one.key, start, end - start, height);
  });
  const keys = parts.map(one => [one.key, `${partWords(run, one.key)} ${percent(one.share)}`]);
  return captioned(text, keys, swatch, {picture: [partHatches(), rects], size: [width, height], look: '', below: whole});
}

function partsBar(run, parts) {
  const height = 34;
  let end = 0;
  return svg(
    'svg',
    {
      class: 'parts',
      role: 'img',
      width: '100%',
      height,
      'aria-label': parts.map(one => `${partWords(run, one.key)} ${percent(one.share)}`).join(', '),
    },
    partHatches(),
    parts.map(one => {
      const start = end;
      end += 100 * one.share;
      const says = svg('title', {}, `${partWords(run, one.key)} ${percent(one.share)}: ${one.meaning}`);
      return svg('g', {}, says, partRects(one.key, `${start}%`, `${100 * one.share}%`, height));
    }),
  );
}

function partsLegend(run, heading_, parts) {
  const whole = parts.reduce((sum, one) => sum + one.share, 0);
  return h(
    'div',
    {class: 'group'},
    heading_ && h('h3', {}, `${heading_} ${percent(whole)}`),
    h(
      'ul',
      {class: 'keys'},
      parts.map(one =>
        h(
          'li',
          {title: one.meaning},
          svg('svg', {class: 'parts', width: 14, height: 14, 'aria-hidden': 'true'}, partRects(one.key, 0, 14, 14)),
          h('span', {}, partWords(run, one.key)),
          h('strong', {}, percent(one.share)),
        ),
      ),
    ),
  );
}

function bestAdvice(run) {
  const found = records(run.advice).slice(0, BEST);
  return panel(
    'What to change first',
    found.length
      ? h('ol', {class: 'best'}, found.map(one => h('li', {}, adviceCard(run, one))))
      : emptyText('No advice for this profile.'),
  );
}

function adviceCard(run, one) {
  return [
    h('p', {class: 'gain'}, one.saves >= 0.9995 ? 'Saves an unknown part' : one.saves ? ['Saves at most ', h('strong', {}, percent(one.saves))] : 'Saves no time by itself'),
    h('h3', {}, one.advice),
    h('p', {}, `${one.evidence}.`),
    whereText(run, one.layers, BEST),
    h('details', {}, h('summary', {}, 'How'), h('pre', {tabindex: '0'}, h('code', {}, one.code))),
  ];
}
