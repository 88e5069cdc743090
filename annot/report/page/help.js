// The help: keyboard shortcuts, how to read each view, and a glossary, in a dialog that the key ? opens.
const SHORTCUTS = [
  ['?', 'Open this help'],
  ['/', 'Search the layers'],
  ['Esc', 'Close the help, leave the search'],
  ['↑ ↓', 'Layers: previous and next line. Timeline: previous and next row'],
  ['← →', 'Layers: fold and unfold. Icicle: previous and next box. Timeline: earlier and later'],
  ['Enter', 'Layers: open the layer. Icicle: zoom. Timeline: zoom to the event'],
  ['Backspace', 'Icicle: zoom out'],
  ['o', 'Icicle: open the layer'],
  ['w s + −', 'Timeline: zoom in and out, like the wheel'],
  ['a d', 'Timeline: earlier and later'],
  ['m', 'Timeline: select an interval, to add up its times'],
  ['0', 'Timeline: show all'],
  ['n p', 'Timeline: next and previous event'],
];
const READING = {
  summary:
    'The sentence at the top has the time of a step and the largest parts of it. The bar divides the wall-clock time of ' +
    'the steps into parts that add up to 100%. Each piece of advice states the most that it can save. These savings can ' +
    'overlap.',
  layers:
    'Each line is a layer with the time of its phases. The total time includes the layers inside it, the self time does ' +
    'not. The self times of all lines add up to the whole. Start with the line with the largest self time.',
  icicle:
    'The width of a box is the self time of its layer and of all layers below it. Colors are phases. Gray is the self ' +
    'time of the layer. Click a box to zoom.',
  kernels: 'Kernels by name, the longest first, with the layers that launch them. The table above sums them up by kind.',
  roofline:
    'Each dot is a layer. The roof is the highest FLOP/s that the device reaches at each arithmetic intensity. A layer far ' +
    'below the roof can become faster. Layers under the slope are memory-bound, layers under the flat part compute-bound.',
  steps: 'Each bar is a step, in the order of the run. Faint bars are warm-up steps. Means exclude them.',
  timeline: 'CPU threads with their ranges are at the top, GPU activities below them. A gap in a GPU lane is idle time.',
  ranks: 'Each row is a layer on all ranks. Spread is the slowest minus the fastest rank. Collectives wait for the slowest rank.',
  compare: 'Each row is a layer in both profiles. Speedup above 1: B is faster. ± is the 95% confidence interval.',
};
const GLOSSARY = [
  ['Step', 'One iteration of the training or inference loop, with the wait for its data.'],
  ['Warm-up', 'First steps, which take longer because of compilation, tuning and allocation. Means and shares exclude them.'],
  ['Range', 'A named interval on a CPU thread, such as the forward of a layer. annot, NVTX and profilers record ranges.'],
  ['Phase', 'Forward, backward, recompute (a forward that runs again for the backward), optimizer, data wait, or other.'],
  ['Total time', 'Time of a layer with all layers inside it.'],
  ['Self time', 'Time of a layer without the layers inside it. Self times add up to the whole.'],
  [
    'Share',
    'Percentage of the GPU time. Without a GPU: percentage of the wall-clock time of the steps, summed over processes, ' +
      'as in the sentence at the top. Ranges that overlap can exceed 100%.',
  ],
  ['Host time', 'Time of ranges on the CPU.'],
  ['GPU time', 'Sum of the durations of kernels, copies and memsets, also of concurrent ones.'],
  ['GPU busy', 'Time in which at least one kernel, copy or memset runs on the GPU.'],
  ['Attributed', 'GPU time of activities launched inside a range. It counts toward the layer of the range.'],
  ['Unattributed', 'GPU time that was launched outside any range.'],
  ['Exposed', 'Communication or copies that run while no kernel runs: the step waits for them.'],
  ['Overlapped', 'Time of communication or copies during which a kernel runs.'],
  ['Launch-bound', 'The GPU spends much of the step waiting for launches: kernels take less time than their launch on the CPU.'],
  ['CPU-bound', 'The GPU spends much of the step waiting for the CPU.'],
  ['Roofline', 'Highest FLOP/s at an arithmetic intensity: memory bandwidth times intensity, at most the peak FLOP/s.'],
  ['Arithmetic intensity', 'FLOPs per byte that a layer reads or writes.'],
];

// Terms that depend on the maker of the GPU.
function glossaryOf(run) {
  const units = run?.units ?? 'Tensor Cores';
  return [
    ...GLOSSARY,
    [units, 'Units of the GPU that multiply matrices: Tensor Cores of NVIDIA, Matrix Cores (MFMA) of AMD. Full float32 does not use Tensor Cores.'],
    ['Eligible', `A layer that multiplies matrices. It could use ${units}.`],
  ];
}

// The button of the help and its dialog. A page has one of each.
function helpTools(page) {
  const dialog = helpDialog(page);
  const open = () => dialog.open || dialog.showModal();
  document.body.append(dialog);
  addEventListener('keydown', event => {
    if (event.key !== '?' || event.ctrlKey || event.metaKey || event.altKey) return;
    if (/** @type {Element} */ (event.target).closest?.('input, select, textarea')) return;
    event.preventDefault();
    open();
  });
  const attributes = {type: 'button', class: 'help', title: 'Help (?)', 'aria-haspopup': 'dialog', 'aria-keyshortcuts': '?'};
  return h('button', {...attributes, 'aria-label': 'Help', onclick: open}, '?');
}

function helpDialog(page) {
  const views = Object.entries(page.views).filter(([key]) => READING[key]);
  const shares = Object.entries(page.data.runs[0]?.shares ?? {});
  const dialog = h(
    'dialog',
    {id: 'help', 'aria-labelledby': 'help-title'},
    h(
      'div',
      {class: 'help-head'},
      h('h2', {id: 'help-title'}, 'Help'),
      h('button', {type: 'button', autofocus: true, onclick: () => dialog.close()}, 'Close'),
    ),
    h(
      'div',
      {class: 'help-body', tabindex: '0', role: 'region', 'aria-labelledby': 'help-title'},
      helpList('Keyboard', SHORTCUTS.map(([keys, text]) => [keys.split(' ').map(one => [h('kbd', {}, one), ' ']), text])),
      helpList('How to read the views', views.map(([key, [title_]]) => [title_, READING[key]])),
      shares.length > 0 &&
        helpList('Parts of the step time', shares.map(([, [word, meaning]]) => [word, `${meaning}.`])),
      helpList('Glossary', glossaryOf(page.data.runs[0])),
    ),
  );
  dialog.addEventListener('click', event => event.target === dialog && dialog.close()); // outside its content
  return dialog;
}

function helpList(heading_, entries) {
  return [
    h('h3', {}, heading_),
    h('dl', {class: 'about'}, entries.map(([term, text]) => [h('dt', {}, term), h('dd', {}, text)])),
  ];
}
