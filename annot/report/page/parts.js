// The layers in the parts of the step of a profile without GPU activity.

// The forward, backward and optimizer of the steps by layer, the longest first. The others of each part come last.
function layersOfParts(run) {
  const rows = records(run.summary).filter(row => row.section === 'parts');
  if (!rows.length) return null;
  const single = row => row.count === null;
  const shown = [...sorted(rows.filter(single), row => row.ns, true), ...rows.filter(row => !single(row))];
  const steps = run.meta.per_step || 1;
  const whole = run.meta.steps ? 'step' : 'run';
  const longest = Math.max(...rows.map(row => row.ns));
  return panel(
    `Longest layers in each phase of the ${whole}`,
    h(
      'ol',
      {class: 'top'},
      shown.map(row =>
        h(
          'li',
          {},
          h('span', {class: `key part-${row.item}`}, partWords(run, row.item)),
          ' ',
          partOf(run, row),
          h('span', {class: 'value'}, `${duration(row.ns / steps)} · ${percent(row.share)}`),
          h(
            'div',
            {class: 'bar', 'aria-hidden': 'true'},
            withWidth(h('span', {class: `part-${row.item}`}), (100 * row.ns) / longest),
          ),
        ),
      ),
    ),
    h('p', {class: 'hint'}, `Shares are of the time of the ${whole}. The shares of a phase add up to its share in the bar.`),
  );
}

// The layer or fold of a row as a link; a row that adds up others is text. Rows name an optimizer by its class.
function partOf(run, {item, text}) {
  const bare = text.replace(/ ×[\d,]+$/, ''),
    all = [...run.lines, ...run.folds],
    found =
      all.find(one => [title(one), one.module].filter(Boolean).join(' ') === bare) ??
      all.find(one => one.rows?.[item] !== undefined && [one.module, `${one.layer} ${one.module}`].includes(bare));
  return found ? [h('a', {href: partLink(found.place)}, pathName(partName(found))), ' ', found.module && name(found.module, 'module'), foldSize(found)] : name(text);
}
