// The timeline in view as SVG.
import {svg} from './dom.js';
import {captioned, textWidth} from './drawing.js';
import {paint, phasesOf, timelineSpan} from './timeline_canvas.js';

// Has the part of a canvas context that the timeline uses, and makes an SVG element of each call.
class SvgPaper {
  elements = [];
  fillStyle = '';
  strokeStyle = '';
  lineWidth = 1;
  globalAlpha = 1;
  textAlign = 'left';
  textBaseline = 'middle';
  font = '';

  add(tag, attributes, ...children) {
    const round = value => (typeof value === 'number' ? Math.round(100 * value) / 100 : value);
    const rounded = Object.entries(attributes).map(([key, value]) => [key, round(value)]);
    this.elements.push(svg(tag, Object.fromEntries(rounded), ...children));
  }

  fillRect(x, y, width, height) {
    const opacity = this.globalAlpha < 1 ? this.globalAlpha : null;
    this.add('rect', {x, y, width, height, fill: this.fillStyle, 'fill-opacity': opacity});
  }

  strokeRect(x, y, width, height) {
    this.add('rect', {x, y, width, height, fill: 'none', stroke: this.strokeStyle, 'stroke-width': this.lineWidth});
  }

  measureText(text) {
    return {width: textWidth(text, this.font)};
  }

  // Texts wider than `most` are narrowed, as a canvas does.
  fillText(text, x, y, most = Infinity) {
    const narrowed = this.measureText(text).width > most ? {textLength: most, lengthAdjust: 'spacingAndGlyphs'} : {};
    this.add('text', {x, y, fill: this.fillStyle, 'dominant-baseline': 'middle', 'font-size': 11, ...narrowed}, text);
  }
}

export function timelineFile(view) {
  const paper = new SvgPaper(),
    width = view.canvas.clientWidth,
    keys = phasesOf(view).map(phase => [phase, phase]),
    swatch = (phase, x, y) => svg('rect', {class: `fill ${phase}`, x, y, width: 14, height: 14});
  paint(view, paper, width);
  const drawn = {picture: paper.elements, size: [width, view.height], look: '', below: timelineSpan(view)};
  return captioned('Timeline', keys, swatch, drawn);
}
