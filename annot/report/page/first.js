// The first screen of the summary: the verdict, the devices, the parts of the step time, and the best advice.
import {adviceCards} from './advice.js';
import {emptyText, hint, panel} from './blocks.js';
import {h, name, svg} from './dom.js';
import {captioned} from './drawing.js';
import {records} from './model.js';
import {exportable} from './save.js';
import {percent} from './units.js';

export const BEST = 3; // pieces of advice on the first screen
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
const HIGH = 34; // height of the bar in pixels

export function firstScreen(run, rows) {
  const best = records(run.advice).slice(0, BEST),
    machine = run.texts.machine.map(fact => h('li', name(fact))),
    advice = best.length ? adviceCards(run, best) : emptyText('No advice for this profile.');
  return [
    run.meta.cut && h('p.cut', run.meta.cut),
    run.verdict ? h('h1.verdict', run.verdict) : h('h1', 'Summary'),
    h('ul.machine', {'aria-label': 'Devices and software'}, machine),
    stepParts(run, rows),
    panel('What to change first', advice),
  ];
}

// The parts of the step time: disjoint, they add up to the wall-clock time.
export function partsOfStep(run, rows) {
  return Object.entries(run.shares).map(([key, [words, meaning]]) => ({
    key,
    words,
    meaning,
    ...rows.get(`time ${key}`),
  }));
}

// One bar of the parts, and their legend.
function stepParts(run, rows) {
  if (!run.texts.whole) return null;
  const parts = partsOfStep(run, rows).filter(({ns}) => ns > 0),
    busy = parts.filter(({key}) => BUSY.includes(key)),
    idle = parts.filter(({key}) => !BUSY.includes(key)),
    device = run.time === 'gpu_ns',
    title = run.meta.steps ? 'Step time' : 'Time of the run',
    whole = `100% is ${run.texts.whole}.`;
  const legend = (text, some) => some.length > 0 && partsLegend(text, some),
    legends = device ? [legend('GPU busy', busy), legend('GPU idle', idle)] : legend('', parts);
  return panel(
    title,
    exportable(() => partsPicture(parts, title, whole), title, partsBar(parts)),
    h('div.groups', legends),
    hint(whole),
  );
}

// Rectangles of SVG, because browsers print these without background graphics.
function partRects(key, x, width, height) {
  return [
    svg('rect', {class: `fill part-${key}`, x, width, height}),
    HATCHES[key] && svg('rect', {fill: `url(#hatch-${key})`, x, width, height}),
  ];
}

function partHatches() {
  const patterns = Object.entries(HATCHES).map(([key, d]) =>
    svg(
      'pattern',
      {id: `hatch-${key}`, width: 8, height: 8, patternUnits: 'userSpaceOnUse'},
      svg('path.idle-lines', {d}),
    ),
  );
  return svg('defs', patterns);
}

function partText({words, share}) {
  return `${words} ${percent(share)}`;
}

// The parts with the share at which each begins.
function withStarts(parts) {
  let end = 0;
  return parts.map(part => ({...part, start: (end += part.share) - part.share}));
}

// The bar with its title and legend, for files.
function partsPicture(parts, title, whole) {
  const width = 1200,
    swatch = (key, x, y) => svg('g', {transform: `translate(${x} ${y})`}, partRects(key, 0, 14, 14)),
    rects = withStarts(parts).map(({key, start, share}) => partRects(key, width * start, width * share, HIGH)),
    keys = parts.map(part => [part.key, partText(part)]);
  return captioned(title, keys, swatch, {picture: [partHatches(), rects], size: [width, HIGH], look: '', below: whole});
}

function partsBar(parts) {
  const rects = withStarts(parts).map(part => {
    const tip = svg('title', `${partText(part)}: ${part.meaning}`);
    return svg('g', tip, partRects(part.key, `${100 * part.start}%`, `${100 * part.share}%`, HIGH));
  });
  const attributes = {role: 'img', width: '100%', height: HIGH, 'aria-label': parts.map(partText).join(', ')};
  return svg('svg.parts', attributes, partHatches(), rects);
}

function partsLegend(title, parts) {
  const whole = parts.reduce((sum, {share}) => sum + share, 0);
  const keys = parts.map(({key, words, meaning, share}) => {
    const swatch = svg('svg.parts', {width: 14, height: 14, 'aria-hidden': 'true'}, partRects(key, 0, 14, 14));
    return h('li', {title: meaning}, swatch, h('span', words), h('strong', percent(share)));
  });
  return h('div.group', title && h('h3', `${title} ${percent(whole)}`), h('ul.keys', keys));
}
