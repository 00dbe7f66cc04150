// Labels beside marks on a picture, none over another.

const touches = (a, b, gap) => Math.abs(a.x - b.x) < (a.width + b.width) / 2 + gap && Math.abs(a.y - b.y) < (a.height + b.height) / 2 + gap;
const inside = (label, width, height) => label.x >= label.width / 2 && label.x <= width - label.width / 2
  && label.y >= label.height / 2 && label.y <= height - label.height / 2;

// The places around a mark, near ones first: at its sides, then at its corners, then further out.
function* around({ x, y, rx, ry }, wide, high, gap) {
  for (const out of [1, 1.5, 2.5]) {
    const dx = out * (rx + gap) + wide / 2, dy = out * (ry + gap) + high / 2;
    for (const [i, j] of [[1, 0], [-1, 0], [0, -1], [0, 1], [1, -1], [-1, -1], [1, 1], [-1, 1]]) yield [x + i * dx, y + j * dy];
  }
}

// All places of a grid of labels, the nearest to a mark first.
function anywhere({ x, y }, wide, high, width, height) {
  const places = [];
  for (let b = high / 2; b <= height - high / 2; b += high / 2) for (let a = wide / 2; a <= width - wide / 2; a += wide / 2) places.push([a, b]);
  return places.sort((p, q) => Math.hypot(p[0] - x, p[1] - y) - Math.hypot(q[0] - x, q[1] - y));
}

// For each mark {x, y, rx, ry, wide, high} the box of its label {x, y, width, height}, or null if there is no room left.
// (x, y) is the middle of the mark, (rx, ry) half its size, (wide, high) the size of the label, all in pixels of a picture
// of width x height. Boxes lie inside the picture, and at least `gap` pixels apart; large marks choose first.
export function place_labels(marks, width, height, gap = 2) {
  const placed = [], boxes = Array(marks.length).fill(null);
  const order = marks.map((_, i) => i).sort((i, j) => marks[j].rx * marks[j].ry - marks[i].rx * marks[i].ry);
  for (const i of order) {
    const { wide, high } = marks[i], free = ([x, y]) => {
      const box = { x, y, width: wide, height: high };
      return inside(box, width, height) && !placed.some(other => touches(box, other, gap)) ? box : null;
    };
    for (const places of [around(marks[i], wide, high, gap), anywhere(marks[i], wide, high, width, height)]) {
      for (const place of places) if ((boxes[i] = free(place))) break;
      if (boxes[i]) { placed.push(boxes[i]); break; }
    }
  }
  return boxes;
}
