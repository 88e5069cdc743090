// Names of kernels in all views, and one kernel: its times, and the layers that launch it.

// The names of the kernels of a run: the short name, and the place in the table of kernels, by whole name.
function kernelNames(run) {
  if (!run.kernelNames) {
    run.kernelNames = shortNames(run.names);
    run.kernels.name.forEach((text, place) => run.kernelNames.set(text, {short: run.kernels.short[place], place}));
  }
  return run.kernelNames;
}

// The short names of a list of whole names, as {short} by whole name.
function shortNames({texts, shorts}) {
  return new Map(texts.map((text, place) => [text, {short: shorts[place]}]));
}

// A kernel by its short name, with the whole name as tooltip. `wholeNames` shows the whole name instead. The name links
// to the view of the kernel, if the page has it.
function kernelName(names, text) {
  const place = names.get(text)?.place,
    element = kernelText(names, text);
  return place === undefined ? element : h('a', {href: `#kernel/${place}`}, element);
}

function kernelText(names, text) {
  const short = names.get(text)?.short ?? text;
  const shown = short === text ? text : [h('span', {class: 'short'}, short), h('span', {class: 'long'}, text)];
  return h('bdi', {class: 'kernel', title: text}, shown);
}

function kernelView(run, place) {
  const kernel = records(run.kernels)[place];
  if (!kernel) return [h('h1', {}, 'Kernel'), emptyText('This profile does not contain the kernel.')];
  const layers = layersOf(run, kernel.name),
    inLayers = layers.reduce((sum, one) => sum + one.gpu_ns, 0);
  return [
    h('nav', {class: 'crumbs', 'aria-label': 'All kernels'}, h('a', {href: '#kernels'}, 'Kernels')),
    h('h1', {}, name(kernel.short), ' ', name([kernel.kind, kernel.library].filter(Boolean).join(', '), 'module')),
    perStep(run),
    kernelCards(run, kernel),
    panel(
      'Layers that launch it',
      layers.length ? layerTable(kernel, layers) : emptyText('The page has the layers of the longest kernels only.'),
      layers.length > 0 &&
        Math.round(kernel.gpu_ns - inLayers) > 0 &&
        h('p', {class: 'hint'}, `Layers that the page does not contain launch ${duration(kernel.gpu_ns - inLayers)} of it.`),
    ),
    kernel.short !== kernel.name && panel('Full name', h('p', {class: 'whole'}, name(kernel.name, 'kernel'))),
  ];
}

function kernelCards(run, kernel) {
  const facts = [
    ['GPU time', duration(kernel.gpu_ns), share(kernel.gpu_ns, run.meta.gpu_ns)],
    ['Calls', count(kernel.calls), run.meta.per_step ? 'per step' : ''],
    ['Time per call', duration(kernel.mean_ns), `${duration(kernel.min_ns)} to ${duration(kernel.max_ns)}`],
    ['Layers', count(kernel.layers)],
    ...(kernel.kernel ? [[run.units, kernel.tensor_cores ? 'yes' : 'no', 'by its name']] : []),
  ];
  return h(
    'dl',
    {class: 'cards'},
    facts.map(([label_, value, more]) =>
      h('div', {class: 'card'}, h('dt', {}, label_), h('dd', {}, value, more && h('small', {}, more))),
    ),
  );
}

// The rows of the layers that launch a kernel themselves, longest first.
function layersOf(run, text) {
  const code = run.names.texts.indexOf(text),
    {row, name: codes, calls, gpu_ns} = run.names,
    found = [];
  for (let at = 0; at < row.length; at++) {
    if (codes[at] !== code) continue;
    const place = run.lineOf.get(row[at]);
    found.push({
      place,
      line: run.lines[place],
      phase: run.rows.phase[row[at]],
      calls: calls[at],
      gpu_ns: gpu_ns[at],
      mean_ns: gpu_ns[at] / calls[at],
    });
  }
  return found;
}

function layerTable(kernel, layers) {
  const longest = Math.max(1, ...layers.map(one => one.gpu_ns));
  const bar = {
    title: 'Relative',
    class: 'bars minor',
    value: one => one.gpu_ns,
    show: (value, one) =>
      h(
        'div',
        {class: 'bar', 'aria-hidden': 'true'},
        withWidth(h('span', {class: inkOf(one.phase)}), (100 * value) / longest),
      ),
  };
  return sortTable(
    'Layers that launch the kernel',
    [
      {
        title: 'Layer',
        text: true,
        value: one => title(one.line),
        show: (value, one) => [
          h('a', {href: `#layer/${one.place}`}, pathName(value)),
          ' ',
          name(one.line.module, 'module'),
        ],
      },
      bar,
      ...columnsOf('kernel_layers', layers, {
        main_ns: {value: one => one.gpu_ns / kernel.gpu_ns},
        mean_ns: {show: value => duration(Math.round(value))},
      }),
    ],
    layers,
    {by: 'gpu_ns'},
  );
}
