// Labels beside marks on a picture, none over another.

const touches = (a, b, gap) => Math.abs(a.x - b.x) < (a.width + b.width) / 2 + gap && Math.abs(a.y - b.y) < (a.height + b.height) / 2 + gap;
const inside = (label, width, height) => label.x >= label.width / 2 && label.x <= width - label.width / 2
  && label.y >= label.height / 2 && label.y <= height - label.height / 2;

// The places around a mark, near ones first: at its sides, then at its corners, then further out.
function around({ x, y, rx, ry }, wide, high, gap) {
  return [1, 1.5, 2.5].flatMap(out => {
    const dx = out * (rx + gap) + wide / 2, dy = out * (ry + gap) + high / 2;
    return [[1, 0], [-1, 0], [0, -1], [0, 1], [0.8, -0.8], [-0.8, -0.8], [0.8, 0.8], [-0.8, 0.8]].map(([i, j]) => [x + i * dx, y + j * dy]);
  });
}

// All places of a grid of labels, the nearest to a mark first.
function anywhere({ x, y }, wide, high, width, height) {
  const places = [];
  for (let b = high / 2; b <= height - high / 2; b += high / 2) for (let a = wide / 2; a <= width - wide / 2; a += wide / 2) places.push([a, b]);
  return places.sort((p, q) => Math.hypot(p[0] - x, p[1] - y) - Math.hypot(q[0] - x, q[1] - y));
}

const side = (a, b, p) => Math.sign((b.x - a.x) * (p.y - a.y) - (b.y - a.y) * (p.x - a.x));
const cross = ([a, b], [c, d]) => side(a, b, c) !== side(a, b, d) && side(c, d, a) !== side(c, d, b);

// How easily a label at this place is taken for that of another mark: it lies on one, or its line crosses another line.
function confusion(box, mark, others, lines, reach) {
  const on = others.filter(m => Math.hypot((box.x - m.x) / (m.rx + box.width / 2), (box.y - m.y) / (m.ry + box.height / 2)) < 1).length;
  const crossed = lines.filter(line => cross(line, [mark, box])).length;
  return 3 * on + 4 * crossed + Math.hypot(box.x - mark.x, box.y - mark.y) / reach;
}

// For each mark {x, y, rx, ry, wide, high} the box of its label {x, y, width, height}, or null if there is no room left.
// (x, y) is the middle of the mark, (rx, ry) half its size, (wide, high) the size of the label, all in pixels of a picture
// of width x height. Boxes lie inside the picture, and at least `gap` pixels apart; large marks choose first.
export function place_labels(marks, width, height, gap = 2) {
  const placed = [], lines = [], boxes = Array(marks.length).fill(null);
  const order = marks.map((_, i) => i).sort((i, j) => marks[j].rx * marks[j].ry - marks[i].rx * marks[i].ry);
  for (const i of order) {
    const mark = marks[i], { wide, high } = mark, others = marks.filter(m => m !== mark);
    const free = places => places.map(([x, y]) => ({ x, y, width: wide, height: high }))
      .filter(box => inside(box, width, height) && !placed.some(other => touches(box, other, gap)));
    const worth = free(around(mark, wide, high, gap)).map(box => [confusion(box, mark, others, lines, width / 2), box]).sort((a, b) => a[0] - b[0]);
    boxes[i] = worth[0]?.[1] ?? free(anywhere(mark, wide, high, width, height))[0] ?? null;
    if (boxes[i]) { placed.push(boxes[i]); lines.push([mark, boxes[i]]); }
  }
  return boxes;
}
