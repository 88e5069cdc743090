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
    'The sentence at the top says how long a step takes and where most of it goes. The bar divides the wall-clock time ' +
    'of the steps into parts that do not overlap and add up to 100%. Each piece of advice has an upper bound of what ' +
    'it saves; several pieces can save the same time.',
  layers:
    'Each line is a layer with the time of its phases. Total includes the layers inside, self does not. Self times of ' +
    'all lines add up to the whole. Start with the largest self time.',
  icicle:
    'A box is as wide as the self time of its layer and of the layers below it. Colors are phases; the gray part is the ' +
    'time of the layer itself. Click a box to zoom.',
  kernels: 'Kernels by name, the longest first, with the layers that launch them. The kinds above add up kernels of one purpose.',
  roofline:
    'Each dot is a layer. The roof is the most that the device can compute at this intensity. A dot far below the roof ' +
    'has room for improvement; below the slope memory bandwidth is the limit, below the flat part computation is.',
  steps: 'Each bar is a step, in the order of the run. Faint bars are warm-up, which means leave out.',
  timeline: 'Ranges of threads above, GPU activities below, on one time axis. A gap in a GPU lane is idle time.',
  ranks: 'The same layers on all ranks. Spread is the time between the fastest and the slowest rank; collectives wait for the slowest.',
  compare: 'Each row is a layer in both profiles. Speedup above 1: B is faster. ± is the 95% confidence interval.',
};
const GLOSSARY = [
  ['Step', 'One iteration of the training or inference loop, with the wait for its data.'],
  ['Warm-up', 'First steps that take longer: compilation, tuning, allocation. Means and shares leave them out.'],
  ['Range', 'A named interval on a CPU thread, such as the forward of a layer. annot, NVTX and profilers record ranges.'],
  ['Phase', 'Forward, backward, recompute (a forward that runs again for the backward), optimizer, data wait, or other.'],
  ['Total time', 'Time of a layer with all layers inside it.'],
  ['Self time', 'Time of a layer without the layers inside it. Self times add up to the whole.'],
  [
    'Share',
    'Part of the GPU time. Without a GPU: part of the wall-clock time of the steps, added up over processes, as in the ' +
      'sentence at the top. Ranges that overlap can exceed 100 %.',
  ],
  ['Host time', 'Time of ranges on the CPU.'],
  ['GPU time', 'Sum of the durations of kernels, copies and memsets. Concurrent streams add up.'],
  ['GPU busy', 'Time in which at least one kernel, copy or memset runs on the GPU.'],
  ['Attributed', 'GPU time that a range launched, and that therefore counts to its layer.'],
  ['Unattributed', 'GPU time that was launched outside any range.'],
  ['Tensor Cores', 'Matrix units of NVIDIA GPUs (AMD: Matrix Cores). They need float16, bfloat16, TF32 or smaller types.'],
  ['Eligible', 'A layer that multiplies matrices, so that it could use Tensor Cores.'],
  ['Exposed', 'Communication or copies that run while nothing else does, so that the step waits for them.'],
  ['Overlapped', 'Time of a part that is hidden behind another part, such as a copy behind a kernel.'],
  ['Launch-bound', 'The GPU waits for the next launch: kernels are shorter than the CPU needs to launch them.'],
  ['Roofline', 'The limit of speed at an intensity: memory bandwidth times intensity, up to the peak of computation.'],
  ['Intensity', 'FLOPs per byte that a layer reads or writes.'],
];

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
        helpList('Parts of the time', shares.map(([, [word, meaning]]) => [word, `${meaning}.`])),
      helpList('Glossary', GLOSSARY),
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
