// The lines and folds of the layer table by place. annot/report/tree.py finds the folds, such as `layers.*`, and data.py
// says what is inside each line and fold. The places of folds follow those of the lines; -1 stands for all layers.

// Adds to a run what is around each place, and the line of each row.
export function linked(run) {
  if (run.places) return run;
  run.places = [...run.lines, ...run.folds];
  run.around = run.places.map(({parent}) => parent);
  run.lineOf = new Map();
  run.places.forEach((line, place) => {
    line.place = place;
    for (const row of Object.values(line.rows ?? {})) run.lineOf.set(row, place);
    for (const member of line.members ?? []) if (run.lines[member].parent === line.parent) run.around[member] = place;
  });
  return run;
}

export function lineAt(run, place) {
  return run.places[place];
}

export function isFold(run, place) {
  return place >= run.lines.length;
}

// The layers of a fold, or the layer itself.
export function membersOf(run, place) {
  return lineAt(run, place).members ?? [place];
}

// The places directly inside a place. Inside a fold: the layers inside its members, summed up, or with `single` the
// members.
export function placesInside(run, place, single = false) {
  if (place < 0) return run.top;
  const {members, inside = []} = lineAt(run, place);
  return single && members ? members : inside;
}

// All places around a place, the outermost first, and the place itself; none for -1.
export function pathTo(run, place) {
  const path = [];
  for (let at = place; at >= 0; at = run.around[at]) path.unshift(at);
  return path;
}

// A place and all lines and folds inside it; -1: all layers.
export function foldedInside(run, place) {
  const inside = place < 0 ? [] : [place],
    pending = [...placesInside(run, place)];
  while (pending.length) {
    const next = pending.pop();
    inside.push(next);
    pending.push(...placesInside(run, next));
  }
  return inside;
}

// The outermost fold that a line is in, such as `layers.*.norm` for `layers.7.norm`; the line itself outside of folds.
export function foldedPlace(run, place) {
  if (!run.foldedPlaces) {
    const folds = foldedInside(run, -1).filter(at => isFold(run, at));
    run.foldedPlaces = new Map(folds.flatMap(fold => lineAt(run, fold).members.map(member => [member, fold])));
  }
  return run.foldedPlaces.get(place) ?? place;
}

// A line and all lines below it, which follow it.
export function subtree(run, place) {
  const places = [place];
  while (run.lines[place + places.length]?.parent >= place) places.push(place + places.length);
  return places;
}

// The lines and folds that match, and all around them.
export function matchesAndAround(run, numbers) {
  const places = new Set(),
    folds = run.places.map(() => []);
  for (const {place, members} of run.folds) for (const member of members) folds[member].push(place);
  const pending = run.places.map(({place}) => place).filter(place => numbers[place].matches);
  while (pending.length) {
    const place = pending.pop();
    if (place < 0 || places.has(place)) continue;
    places.add(place);
    pending.push(lineAt(run, place).parent, ...folds[place]);
  }
  return places;
}
