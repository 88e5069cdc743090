// The icicle: layers over their time. A box is as wide as the inclusive time of its layer and stands below its parent.
// It is an SVG picture, which prints without background graphics and keeps the roles of a tree.
import {address, remember} from './address.js';
import {colorKey, emptyView, filterForm, pairs, panel} from './blocks.js';
import {actOnKey, announce, h, name, placeTip, printable, put, svg} from './dom.js';
import {captioned, textWidth} from './drawing.js';
import {layerCell, layerHref, perStep} from './elements.js';
import {deviceOf, fullName, INKS, measured} from './model.js';
import {foldedInside, isFold, lineAt, matchesAndAround, membersOf, pathTo, placesInside} from './places.js';
import {exportable} from './save.js';
import {LISTED, longest, sortTable} from './table.js';
import {layerFilters} from './tree.js';
import {count, duration, instant, known, plural, share, timeAndShare} from './units.js';

const BOX = 28; // height of a box in pixels
const TEXT_ROOM = 23; // width of the narrowest box with a text in pixels
const TEXT_HALF = 7; // half the height of its text
const NARROWEST = 1; // in pixels; narrower neighbors share a gray box
const EXPLANATION = 'Width: inclusive time. Height of a color: its share of the box.';

export function icicleView(run, state, root) {
  if (!lineAt(run, root)) [root, address.argument] = [-1, ''];
  if (!run.lines.length) return emptyView('Icicle', 'No layers were recorded. Use emit_ranges(model).');
  const tree = {role: 'tree', 'aria-label': 'Layers by time', 'aria-describedby': 'icicle-keys'},
    picture = svg('svg', tree),
    tip = h('div.tip', {hidden: true}),
    holder = h('div.icicle', picture, tip);
  const view = {
    ...{run, state, root, at: root, width: 0, picture, tip, holder},
    status: h('p.status', {role: 'status'}),
    crumbs: h('nav.crumbs', {'aria-label': 'Zoom'}),
    legend: h('p.legend'),
    detail: h('div.detail'),
    most: h('div'),
  };
  listenIcicle(view);
  new ResizeObserver(([{contentRect}]) => {
    if (Math.floor(contentRect.width) === view.width) return;
    view.width = Math.floor(contentRect.width);
    drawIcicle(view);
  }).observe(holder);
  const draw = () => {
    measureIcicle(view);
    drawIcicle(view);
    remember();
  };
  measureIcicle(view);
  const keys =
    'Click or Enter: zoom. Escape or Backspace: zoom out. Arrow keys: move. O: open the layer. /: search. ' +
    'The layers view shows the layers as a table.';
  return [
    h('h1', 'Icicle'),
    perStep(run),
    filterForm(layerFilters(run, state, draw)),
    view.status,
    view.crumbs,
    view.legend,
    exportable(() => icicleFile(view), 'Icicle', holder),
    h('p.hint', {id: 'icicle-keys'}, keys),
    view.detail,
    view.most,
  ];
}

// The times of each place under the filters, as in the layers view; a fold matches if one of its layers does.
function measureIcicle(view) {
  const {run, state} = view,
    {filters} = state,
    {numbers, whole, time, parts} = measured(run, filters),
    searched = Boolean(filters.search.trim() || filters.module),
    hits = numbers.map(({matches}) => searched && matches);
  for (const {place, members} of run.folds) hits[place] ||= members.some(member => hits[member]);
  const own = numbers.map(({self}) => self ?? 0),
    wide = numbers.map(({total}) => total ?? 0);
  Object.assign(view, {numbers, whole, time, parts, searched, own, wide, hits, within: matchesAndAround(run, numbers)});
  view.status.textContent = icicleStatus(view);
}

// What the picture shows, and the sum of the layers that match: layers inside of others that match count once.
function icicleStatus({run, own, hits, whole, time, searched}) {
  const what = deviceOf(time);
  if (!searched) return `${what} time, ${duration(whole)}, ${plural(run.lines.length, 'line')}.`;
  const covered = [];
  let ns = 0;
  for (const {place, parent} of run.lines) {
    covered[place] = hits[place] || Boolean(covered[parent]);
    if (covered[place]) ns += own[place];
  }
  const matches = plural(run.lines.filter(({place}) => hits[place]).length, 'line matches', 'lines match');
  return `${matches}: ${duration(ns)}, ${share(ns, whole) || '0.0%'} of the ${what === 'Host' ? 'host' : what} time.`;
}

// The boxes in view, parents before children, with their place and size in pixels. `few` is a run of narrow neighbors,
// and `self` the part of a parent that no child covers. A fold is one box; in the whole width, it has a box per layer,
// without the layers inside if there are many.
function icicleBoxes({run, wide, own, within, whole, root, width}) {
  const above = pathTo(run, root),
    flat = lineAt(run, root)?.members?.length > LISTED;
  /** @type {any[]} */
  const boxes = [-1, ...above].map((place, level) => ({place, level, x: 0, wide: width, above: place !== root}));
  const visit = (places, level, x, scale) => {
    /** @type {any} */
    let few = null;
    for (const place of places) {
      const size = wide[place] * scale;
      if (size >= NARROWEST) {
        few = null;
        boxes.push({place, level, x, wide: size});
        if (!flat) inside(place, level + 1, x, scale);
      } else if (size > 0) {
        if (!few) boxes.push((few = {few: 0, level, x, wide: 0}));
        few.few++;
        few.wide += size;
        few.hit ||= within.has(place);
      }
      x += size;
    }
  };
  const inside = (place, level, x, scale) => {
    const listed = place === root && isFold(run, place),
      self = listed ? 0 : own[place] * scale,
      inner = wide[place] * scale - self;
    visit(placesInside(run, place, listed), level, x, scale);
    if (inner > 0 && self >= NARROWEST) boxes.push({self: true, level, x: x + inner, wide: self});
  };
  if (root < 0) visit(placesInside(run, -1), 1, 0, width / (whole || 1));
  else inside(root, above.length + 1, 0, width / (wide[root] || 1));
  return boxes.filter(box => !box.few || box.wide >= NARROWEST / 2);
}

function drawIcicle(view) {
  if (!view.width) return;
  view.boxes = icicleBoxes(view);
  const height = BOX * (1 + Math.max(...view.boxes.map(box => box.level)));
  if (!view.boxes.some(box => box.place === view.at)) view.at = view.root;
  view.elements = new Map();
  view.cursor = svg('rect.cursor', {rx: 2, height: BOX - 3, visibility: 'hidden'});
  const texts = view.boxes.map(box => boxText(view, box)),
    boxes = view.boxes.map(box => drawBox(view, box));
  view.picture.replaceChildren(hatches(), ...boxes, svg('g', {'aria-hidden': 'true'}, texts), view.cursor);
  put(view.picture, {viewBox: `0 0 ${view.width} ${height}`, 'data-boxes': view.elements.size});
  view.tip.hidden = true;
  view.crumbs.replaceChildren(...icicleCrumbs(view));
  view.legend.replaceChildren(...icicleLegend(view));
  describeBox(view, view.at);
  view.most.replaceChildren(mostSelf(view));
}

// The layers below the one in the whole width that have the most time of their own.
function mostSelf(view) {
  const {run, own, wide, whole, root} = view,
    self = place => own[place],
    best = longest(foldedInside(run, root), self),
    where = root < 0 ? '' : ` in ${lineAt(run, root).title}`;
  const columns = [
    {title: 'Layer', text: true, value: place => lineAt(run, place).title, show: (_, place) => layerCell(run, place)},
    {title: 'Self', value: self, show: duration},
    {title: 'Share', value: self, show: value => share(value, whole)},
    {title: 'Total', class: 'minor', value: place => wide[place], show: duration},
  ];
  return panel(`Most self time${where}`, sortTable('Layers by self time', columns, best));
}

function hatches() {
  const line = svg('path.hatch', {d: 'M0,6L6,0'});
  return svg('defs', svg('pattern', {id: 'hatch', width: 6, height: 6, patternUnits: 'userSpaceOnUse'}, line));
}

function drawBox(view, box) {
  const {place, level, x} = box,
    y = level * BOX,
    wide = Math.max(box.wide - (box.wide > 4 ? 1 : 0), 0.5);
  const rect = (className, top, high) => svg('rect', {class: className, x, y: y + top, width: wide, height: high});
  const look = {class: boxClass(view, box)};
  if (place === undefined)
    return svg('g', {...look, 'aria-hidden': 'true'}, rect(box.self ? 'fill-self' : 'fill', 0, BOX - 1));
  const facts = factsOf(view, place).filter(([term]) => !['Layer', 'Total', 'Share'].includes(term));
  const attributes = {
    ...look,
    id: `box${place}`,
    role: 'treeitem',
    tabindex: place === view.at ? '0' : '-1',
    'data-place': place,
    'aria-level': level + 1,
    'aria-selected': String(place === view.root),
    'aria-label': [boxLabels(view, box)[0], ...facts.map(fact => fact.join(' '))].join(', '),
  };
  const element = svg('g', attributes, boxFill(view, box, rect));
  view.elements.set(place, {element, box});
  return element;
}

function boxClass({searched, hits}, {place, above, self, few, hit}) {
  if (self) return 'own';
  const found = searched && place !== -1 ? (hit || hits[place] ? ' hit' : ' dim') : '';
  return `${few ? 'few' : place < 0 ? 'box all' : 'box'}${above ? ' above' : ''}${found}`;
}

// The phases of a box from top to bottom, with their place: the area of a color is the time of the phase.
function stacked(view, place) {
  let end = 0;
  return phasesOf(view, place).map(([phase, ns]) => {
    const begin = end;
    end += ((BOX - 1) * ns) / view.wide[place];
    return {phase, begin, end};
  });
}

function boxFill(view, {place, wide}, rect) {
  if (place < 0) return rect('fill-self', 0, BOX - 1);
  return stacked(view, place).map(({phase, begin, end}) => {
    const text = wide - TEXT_ROOM > 0 && Math.abs(begin - BOX / 2) < TEXT_HALF;
    return [
      rect(`fill ${phase}`, begin, end - begin),
      phase === 'backward' && wide > 4 && rect('hatched', begin, end - begin),
      begin > 0 && !text && rect('seam', begin - 0.5, 1), // tells phases apart; not through a text
    ];
  });
}

// The phase behind the middle of the text of a box, and whether others are behind the text, too.
function inkOfText(view, place) {
  const [from, to] = [BOX / 2 - TEXT_HALF, BOX / 2 + TEXT_HALF],
    behind = stacked(view, place).filter(({begin, end}) => end > from && begin < to),
    middle = behind.find(({begin, end}) => begin <= BOX / 2 && end > BOX / 2) ?? behind[0];
  return `${middle?.phase ?? 'other'}${behind.length > 1 ? ' halo' : ''}`; // without time: other
}

function phasesOf({parts}, place) {
  return INKS.map(phase => [phase, parts[place][phase]]).filter(([, ns]) => ns > 0);
}

// The texts of a box, from the longest to the shortest.
function boxLabels(view, {place, self, few}) {
  if (self) return ['self'];
  if (few) return [`${few} narrow`];
  if (place < 0) return [`All · ${duration(view.whole)}`, 'All'];
  const line = lineAt(view.run, place),
    named = fullName(line),
    ns = view.wide[place];
  return [`${named} · ${timeAndShare(ns, view.whole)}`, `${named} · ${duration(ns)}`, named, line.title, line.label];
}

// Writes the longest text that fits, or the beginning of the last. Texts lie above all boxes, which name themselves.
function boxText(view, box) {
  const texts = boxLabels(view, box),
    room = box.wide - TEXT_ROOM + 12;
  if (room < 12) return null;
  const long = text => textWidth(text, '12px system-ui, sans-serif');
  let text = texts.find(one => long(printable(one)) <= room);
  if (text === undefined) {
    const last = printable(texts.at(-1).slice(0, 200)),
      kept = Math.floor((last.length * room) / long(last)) - 1;
    if (kept < 1) return null;
    text = `${last.slice(0, kept)}…`;
  }
  const ink = box.place >= 0 ? ` ${inkOfText(view, box.place)}` : '';
  return svg('text', {class: `${boxClass(view, box)}${ink}`, x: box.x + 5, y: box.level * BOX + BOX / 2 + 3.5}, text);
}

// The name of a box and its numbers, as pairs of term and value.
function factsOf(view, place) {
  const {run, numbers, own, whole, wide, root} = view;
  if (place < 0) return Object.entries({Layer: 'All', Total: duration(whole)});
  const line = lineAt(run, place),
    one = numbers[place],
    rows = membersOf(run, place).flatMap(member => Object.values(run.lines[member].rows)),
    shapes = rows.map(row => run.rows.shapes[row]).find(found => found.length);
  return [
    ['Layer', fullName(line)],
    ['Total', duration(wide[place])],
    ['Self', duration(own[place])],
    ...phasesOf(view, place).map(([phase, ns]) => [phase[0].toUpperCase() + phase.slice(1), duration(ns)]),
    ['Share', share(wide[place], whole)],
    ['Share of the zoom', root >= 0 && root !== place ? share(wide[place], wide[root]) : ''],
    ['Median', instant(one.median)],
    ['Slowest', known(one.slowest) ? `${duration(one.slowest)} (${one.index})` : ''],
    ['Calls', count(one.calls)],
    ['Kernels', run.time === 'gpu_ns' ? count(one.kernels || null) : ''],
    ['Shape', shapes ? `${shapes[0]}${shapes.length > 1 ? ` (+${shapes.length - 1})` : ''}` : ''],
  ].filter(([, value]) => value);
}

function describeBox(view, place) {
  const [[, named], ...facts] = factsOf(view, place),
    link = place >= 0 && h('a', {href: layerHref(place)}, 'Open the layer');
  view.detail.replaceChildren(h('p.heads', h('strong', name(named)), link), pairs(facts));
}

function icicleCrumbs(view) {
  const link = (place, text) => {
    const onclick = event => {
      event.preventDefault();
      zoomTo(view, place);
    };
    const current = place === view.root ? 'true' : null,
      href = place < 0 ? '#icicle' : `#icicle/${place}`;
    return h('a', {href, 'aria-current': current, onclick}, name(text));
  };
  const above = pathTo(view.run, view.root);
  return [link(-1, 'All'), ...above.flatMap(place => [' › ', link(place, lineAt(view.run, place).label)])];
}

function icicleLegend(view) {
  const keys = icicleKeys(view).map(([look, text]) => colorKey(look, text));
  return [...keys, h('span.hint', EXPLANATION)];
}

// What the colors in view mean: the classes of each, and words.
function icicleKeys(view) {
  const places = view.boxes.filter(({place}) => place >= 0),
    seen = new Set(places.flatMap(({place}) => phasesOf(view, place).map(([phase]) => phase)));
  return [
    ...INKS.filter(phase => seen.has(phase)).map(phase => [phase === 'backward' ? 'backward hatch' : phase, phase]),
    ...(view.boxes.some(box => box.few) ? [['few', 'layers narrower than a pixel: zoom in']] : []),
    ...(view.boxes.some(box => box.self) ? [['fill-self', 'self: time outside child layers']] : []),
  ];
}

// The picture with its title and legend, for files.
function icicleFile(view) {
  const picture = view.picture.cloneNode(true),
    height = view.picture.viewBox.baseVal.height,
    at = view.root < 0 ? '' : ` of ${fullName(lineAt(view.run, view.root))}`;
  picture.querySelector('.cursor').remove();
  const swatch = (look, x, y) => [
    svg('rect', {class: `fill ${look.split(' ')[0]}`, x, y, width: 14, height: 14}),
    look.endsWith('hatch') && svg('rect', {class: 'hatched', x, y, width: 14, height: 14}),
  ];
  return captioned(`${deviceOf(view.time)} time by layer${at}`, icicleKeys(view), swatch, {
    picture: [...picture.childNodes],
    size: [view.width, height],
    look: 'icicle',
    below: EXPLANATION,
  });
}

// Shows a line, at the top, in the whole width; -1: all lines.
function zoomTo(view, place) {
  view.root = place;
  view.at = place;
  address.argument = place < 0 ? '' : String(place);
  remember(true);
  drawIcicle(view);
  view.elements.get(place)?.element.focus({preventScroll: true});
  announce(`Zoom: ${place < 0 ? 'All' : lineAt(view.run, place).title}`);
}

function listenIcicle(view) {
  const {picture, tip} = view;
  const onBox = (act, elsewhere = () => {}) => {
    return event => {
      const place = event.target.closest?.('[data-place]')?.dataset.place;
      if (place === undefined) elsewhere();
      else act(Number(place), event);
    };
  };
  const hide = () => (tip.hidden = true);
  put(picture, {
    onclick: onBox(place => zoomTo(view, place)),
    onpointermove: onBox((place, event) => showTip(view, place, event.clientX, event.clientY), hide),
    onpointerleave: hide,
    onfocusin: onBox((place, event) => focusBox(view, place, event.target)),
    onfocusout: () => {
      hide();
      view.cursor.setAttribute('visibility', 'hidden');
    },
    onkeydown: event => icicleKeyPressed(view, event),
  });
}

function focusBox(view, place, target) {
  view.elements.get(view.at)?.element.setAttribute('tabindex', '-1');
  target.setAttribute('tabindex', '0');
  view.at = place;
  describeBox(view, place);
  if (!target.matches(':focus-visible')) return;
  const {box} = view.elements.get(place),
    bounds = target.getBoundingClientRect();
  put(view.cursor, {visibility: 'visible', x: box.x + 1, y: box.level * BOX + 1, width: Math.max(box.wide - 3, 2)});
  showTip(view, place, bounds.left, bounds.bottom - 12);
}

function showTip(view, place, x, y) {
  const {tip, holder} = view,
    bounds = holder.getBoundingClientRect(),
    [[, named], ...facts] = factsOf(view, place);
  tip.replaceChildren(name(named), pairs(facts));
  tip.hidden = false;
  placeTip(tip, bounds, x);
  tip.style.top = `${y - bounds.top + 16}px`;
}

function icicleKeyPressed(view, event) {
  const boxes = view.boxes.filter(box => box.place !== undefined),
    at = boxes.findIndex(box => box.place === view.at),
    {level} = boxes[at],
    row = boxes.filter(box => box.level === level),
    column = row.indexOf(boxes[at]);
  const to = box => box && view.elements.get(box.place).element.focus();
  actOnKey(event, {
    ArrowDown: () => boxes[at + 1]?.level === level + 1 && to(boxes[at + 1]),
    ArrowUp: () => to(boxes.slice(0, at).findLast(box => box.level === level - 1)),
    ArrowLeft: () => to(row[column - 1]),
    ArrowRight: () => to(row[column + 1]),
    Home: () => to(row[0]),
    End: () => to(row.at(-1)),
    Enter: () => zoomTo(view, view.at),
    Escape: () => zoomOut(view),
    Backspace: () => zoomOut(view),
    o: () => {
      if (view.at >= 0) location.hash = layerHref(view.at);
    },
  });
}

// Zooms out by one level, and keeps the box at which the reader was.
function zoomOut(view) {
  if (view.root < 0) return;
  const from = view.root;
  zoomTo(view, view.run.around[from]);
  view.elements.get(from)?.element.focus({preventScroll: true});
}
