// The help: a dialog in page.html with keyboard shortcuts, how to read each view, and a glossary, which the key ? opens.
import {button} from './blocks.js';
import {h, onShortcut} from './dom.js';

// The button of the help. A page has one.
export function helpTools({views, data}) {
  const dialog = /** @type {HTMLDialogElement} */ (document.getElementById('help')),
    [run] = data.runs,
    open = () => dialog.open || dialog.showModal();
  fill(dialog, views, run);
  onShortcut('?', open);
  dialog.querySelector('button').addEventListener('click', () => dialog.close());
  dialog.addEventListener('click', event => event.target === dialog && dialog.close()); // outside its content
  const announced = {'aria-haspopup': 'dialog', 'aria-keyshortcuts': '?', 'aria-label': 'Help'};
  return button('?', open, {class: 'help', title: 'Help (?)', ...announced});
}

// Leaves out the views that the page lacks, and adds the parts of the step time and the words for the matrix units.
function fill(dialog, views, run) {
  for (const view of dialog.querySelectorAll('[data-view]')) {
    if (view.dataset.view in views) continue;
    view.nextElementSibling.remove();
    view.remove();
  }
  const shares = Object.values(run?.shares ?? {}).map(([words, meaning]) => [h('dt', words), h('dd', `${meaning}.`)]),
    list = dialog.querySelector('[data-shares]');
  list.append(...shares.flat());
  if (!shares.length) [list.previousElementSibling, list].forEach(element => element.remove());
  for (const units of dialog.querySelectorAll('[data-units]')) units.textContent = run?.units ?? 'Tensor Cores';
}
