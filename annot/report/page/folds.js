// Repeated layers as one line, such as `layers.*`. annot/report/tree.py finds the folds; here they are only drawn. A fold
// has the place after all lines: run.lines.length plus its number.

// The line or fold of a place.
function lineAt(run, place) {
  return run.lines[place] ?? run.folds[place - run.lines.length];
}

// The layers of a fold, or the layer itself.
function membersOf(run, place) {
  return lineAt(run, place).members ?? [place];
}

function isFold(run, place) {
  return place >= run.lines.length;
}

// Maps each line or fold (-1: none) to the places of the folds directly inside.
function foldsInside(run) {
  if (run.foldsInside) return run.foldsInside;
  run.foldsInside = new Map();
  run.folds.forEach((fold, number) => {
    fold.place = run.lines.length + number;
    if (!run.foldsInside.has(fold.parent)) run.foldsInside.set(fold.parent, []);
    run.foldsInside.get(fold.parent).push(fold.place);
  });
  return run.foldsInside;
}

// The places directly inside a line (-1: the outermost lines): each fold instead of its members. Inside a fold: the
// layers inside its members, summed up, or with `single` the members.
function placesInside(run, place, single) {
  const folds = foldsInside(run).get(place) ?? [];
  if (isFold(run, place)) return single ? lineAt(run, place).members : folds;
  const inside = place < 0 ? run.top : run.children[place];
  if (!folds.length) return inside;
  const foldOf = new Map(folds.flatMap(fold => lineAt(run, fold).members.map(member => [member, fold])));
  return [...new Set(inside.map(one => foldOf.get(one) ?? one))];
}

// The place around a line or fold: the fold of the line if the fold lists it, else its parent; -1: none.
function placeAround(run, place) {
  const {parent} = lineAt(run, place),
    foldOf = fold => lineAt(run, fold).members.includes(place);
  return isFold(run, place) ? parent : ((foldsInside(run).get(parent) ?? []).find(foldOf) ?? parent);
}

// All places around a place, the outermost first, and the place itself; none for -1.
function pathTo(run, place) {
  const found = [];
  for (let at = place; at >= 0; at = placeAround(run, at)) found.unshift(at);
  return found;
}

// A place and all lines and folds inside it; -1: all layers.
function foldedInside(run, place) {
  const found = place < 0 ? [] : [place];
  const pending = [...placesInside(run, place)];
  while (pending.length) {
    const next = pending.pop();
    found.push(next);
    pending.push(...placesInside(run, next));
  }
  return found;
}

// The outermost fold that a line is in, such as `layers.*.norm` for `layers.7.norm`; the line itself outside of folds.
function foldedPlace(run, place) {
  if (!run.foldedPlaces) {
    const folded = foldedInside(run, -1).filter(one => isFold(run, one));
    run.foldedPlaces = new Map(folded.flatMap(fold => lineAt(run, fold).members.map(one => [one, fold])));
  }
  return run.foldedPlaces.get(place) ?? place;
}

// Adds the values of the folds to those of the lines: sums, and how the members differ.
function withFolds(run, shown, filters) {
  const needle = filters.search.trim().toLowerCase();
  for (const fold of run.folds) {
    const members = fold.members.map(place => shown.numbers[place]);
    const sums = Object.fromEntries(Object.keys(members[0]).map(key => [key, sumKnown(members.map(one => one[key]))]));
    const matches =
      (!filters.module || fold.module === filters.module) &&
      (!needle || `${fold.layer} ${fold.module}`.toLowerCase().includes(needle)) &&
      (!filters.phase || fold.members.some(place => filters.phase in run.lines[place].rows)) &&
      !(filters.steps.trim() && !sums.total);
    shown.numbers.push({...sums, matches, kind: members[0].kind, ...spreadOf(fold, members)});
  }
  return shown;
}

function sumKnown(values) {
  const found = values.filter(known);
  return found.length ? found.reduce((sum, value) => sum + value, 0) : null;
}

// The median, the slowest with its index and the interquartile range, as `spread_of` in annot/report/tree.py.
function spreadOf(fold, members) {
  const times = members.map((one, number) => [one.total, number]).filter(([time]) => known(time));
  if (times.length < 2) return {};
  times.sort((a, b) => a[0] - b[0] || b[1] - a[1]);
  const at = part => {
    const place = (times.length - 1) * part,
      below = Math.floor(place);
    return times[below][0] + (place - below) * ((times[below + 1] ?? times[below])[0] - times[below][0]);
  };
  const [slowest, number] = times[times.length - 1];
  return {median: at(0.5), slowest, number, index: fold.indices[number], iqr: at(0.75) - at(0.25)};
}

// The parts of the run with the most self time: layers, folds, optimizer, data wait and ranges of the program.
function largestParts(run, number) {
  const {numbers, whole} = withFolds(run, measured(run, {...NOTHING}), NOTHING);
  const places = foldedInside(run, -1).filter(place => !OUTER.includes(lineAt(run, place).layer));
  const found = places.filter(place => numbers[place].self > 0).sort((a, b) => a - b);
  return {numbers, whole, places: sorted(found, place => numbers[place].self, true).slice(0, number)};
}
const OUTER = ['(epoch)', '(batch)', '(unattributed)'];

// The name of a part: the path of a layer, or the title of another line, such as Optimizer.
function partName(line) {
  return title(line);
}

function partLink(place) {
  return `#layer/${place}`;
}

// A line or fold in a table: a link with its class, and the number of its layers.
function layerCell(run, place, text = title(lineAt(run, place))) {
  const line = lineAt(run, place);
  return [h('a', {href: partLink(place)}, pathName(text)), ' ', name(line.module, 'module'), foldSize(line)];
}

function foldSize(line) {
  return line.members?.length > 0 && h('span', {class: 'count'}, ` ×${count(line.members.length)}`);
}
