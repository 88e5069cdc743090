// Names of kernels in all views, and one kernel: its times, and the layers that launch it.
import {cards, emptyText, emptyView, hint, panel} from './blocks.js';
import {h, name} from './dom.js';
import {layerCell, perStep} from './elements.js';
import {inkOf, records} from './model.js';
import {barColumn, columnsOf, sortTable} from './table.js';
import {count, duration, instant, share} from './units.js';

// The names of the kernels of a run: the short name, and the place in the table of kernels, by whole name.
export function kernelNames(run) {
  if (!run.kernelNames) {
    run.kernelNames = shortNames(run.names);
    run.kernels.name.forEach((text, place) => run.kernelNames.set(text, {short: run.kernels.short[place], place}));
  }
  return run.kernelNames;
}

// The short names of a list of whole names, as {short} by whole name.
export function shortNames({texts, shorts}) {
  return new Map(texts.map((text, place) => [text, {short: shorts[place]}]));
}

// A kernel by its short name, with the whole name as tooltip. `wholeNames` shows the whole name instead. The name links
// to the view of the kernel, if the page has it.
export function kernelName(names, text) {
  const place = names.get(text)?.place,
    element = kernelText(names, text);
  return place === undefined ? element : h('a', {href: `#kernel/${place}`}, element);
}

export function kernelText(names, text) {
  const short = names.get(text)?.short ?? text;
  return h('bdi.kernel', {title: text}, short === text ? text : [h('span.short', short), h('span.long', text)]);
}

export function kernelView(run, place) {
  const kernel = records(run.kernels)[place];
  if (!kernel) return emptyView('Kernel', 'This profile does not contain the kernel.');
  const layers = layersOf(run, kernel.name),
    others = layers.reduce((ns, layer) => ns - layer.gpu_ns, kernel.gpu_ns);
  return [
    h('nav.crumbs', {'aria-label': 'All kernels'}, h('a', {href: '#kernels'}, 'Kernels')),
    h('h1', name(kernel.short), ' ', name([kernel.kind, kernel.library].filter(Boolean).join(', '), 'module')),
    perStep(run),
    kernelCards(run, kernel),
    panel(
      'Layers that launch it',
      layers.length
        ? layerTable(run, kernel, layers)
        : emptyText('The page has the layers of the longest kernels only.'),
      layers.length > 0 &&
        Math.round(others) > 0 &&
        hint(`Layers that the page does not contain launch ${duration(others)} of it.`),
    ),
    kernel.short !== kernel.name && panel('Full name', h('p.whole', name(kernel.name, 'kernel'))),
  ];
}

function kernelCards(run, kernel) {
  return cards([
    ['GPU time', duration(kernel.gpu_ns), share(kernel.gpu_ns, run.meta.gpu_ns)],
    ['Calls', count(kernel.calls), run.meta.per_step ? 'per step' : ''],
    ['Time per call', duration(kernel.mean_ns), `${duration(kernel.min_ns)} to ${duration(kernel.max_ns)}`],
    ['Layers', count(kernel.layers)],
    ...(kernel.kernel ? [[run.units, kernel.tensor_cores ? 'yes' : 'no', 'by its name']] : []),
  ]);
}

// The rows of the layers that launch a kernel themselves, longest first.
function layersOf(run, text) {
  const code = run.names.texts.indexOf(text);
  return records(run.names.rows)
    .filter(({name: one}) => one === code)
    .map(({row, calls, gpu_ns}) => ({
      place: run.lineOf.get(row),
      phase: run.rows.phase[row],
      ...{calls, gpu_ns},
      mean_ns: gpu_ns / calls,
    }));
}

function layerTable(run, kernel, layers) {
  const value = ({place}) => run.lines[place].title;
  const time = ({gpu_ns}) => gpu_ns;
  const columns = [
    {title: 'Layer', text: true, value, show: (_, {place}) => layerCell(run, place)},
    barColumn('Relative', time, layer => [[inkOf(layer.phase), time(layer)]], layers),
    ...columnsOf('kernel_layers', layers, {
      main_ns: {value: ({gpu_ns}) => (kernel.gpu_ns ? gpu_ns / kernel.gpu_ns : null)},
      mean_ns: {show: instant},
    }),
  ];
  return sortTable('Layers that launch the kernel', columns, layers, {by: 'gpu_ns'});
}
