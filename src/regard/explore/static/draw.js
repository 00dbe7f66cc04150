// Drawing on canvases. Coordinates of pictures are those of the unit square: x to the right, y down.
import { place_labels } from "./labels.js";

// Twelve colours, even in lightness from dark to bright: viridis without its darkest part.
const STOPS = ["3b528b", "33638d", "2c728e", "26828e", "21918c", "1fa088", "28ae80", "3fbc73", "5ec962", "84d44b", "addc30", "fde725"]
  .map(h => [0, 2, 4].map(i => parseInt(h.slice(i, i + 2), 16)));

export function colour(share) {
  const at = Math.min(Math.max(share, 0), 1) * (STOPS.length - 1), low = Math.floor(at), part = at - low;
  const a = STOPS[low], b = STOPS[Math.min(low + 1, STOPS.length - 1)];
  return a.map((v, i) => Math.round(v + part * (b[i] - v)));
}
const css = share => `rgb(${colour(share).join(",")})`;

// The picture, lightly dimmed, so that attention stands out in colour; without one, a dark ground.
const DIMMED = 0.32;
export function backdrop(canvas, picture) {
  const g = canvas.getContext("2d"), { width, height } = canvas;
  g.globalAlpha = 1; g.fillStyle = "#0c0f10"; g.fillRect(0, 0, width, height);
  if (picture) { plain(canvas, picture); g.globalAlpha = DIMMED; g.fillRect(0, 0, width, height); g.globalAlpha = 1; }
  return g;
}

export function plain(canvas, picture) {
  const g = canvas.getContext("2d");
  g.globalAlpha = 1; g.imageSmoothingEnabled = (picture.naturalWidth ?? picture.width) > 200;
  g.drawImage(picture, 0, 0, canvas.width, canvas.height);
}

export const highest = rows => Math.max(1e-12, ...rows.flat());

// How much colour covers the picture: little attention tints it, much attention hides it, as far as `opacity` lets it.
const cover = (share, opacity) => opacity * (0.15 + 0.85 * Math.min(share, 1) ** 0.6);

// Cells of a grid; those of weight zero stay transparent, those well below zero are hatched.
export function cells(canvas, rows, top, opacity = 0.9) {
  const g = canvas.getContext("2d"), h = canvas.height / rows.length, w = canvas.width / rows[0].length;
  rows.forEach((row, j) => row.forEach((value, i) => {
    const x = Math.round(i * w), y = Math.round(j * h), wide = Math.round((i + 1) * w) - x, high = Math.round((j + 1) * h) - y;
    if (value > 0) {
      const share = Math.sqrt(value / top);
      g.globalAlpha = cover(share, opacity); g.fillStyle = css(share); g.fillRect(x, y, wide, high);
    } else if (value < -0.01 * top) {
      g.globalAlpha = 0.6 * opacity; g.strokeStyle = "#fff"; g.lineWidth = 1;
      g.beginPath(); g.moveTo(x, y + high); g.lineTo(x + wide, y); g.stroke();
    }
  }));
  g.globalAlpha = 1;
}

// The half axes of a support in standard deviations (docs/math.md, 5.4); none for a Gaussian.
export const edge = density => ({ paraboloid: Math.sqrt(6), betagaussian: Math.sqrt(4 + 2 / (density.alpha - 1)) })[density.family];

function pdf_of(density) {
  const ratio = edge(density) ** 2;
  const parts = density.components.map(({ share, mean: [mx, my], covariance: [[a, b], [, c]] }) => {
    const det = Math.max(a * c - b * b, 1e-12), power = density.family === "betagaussian" ? 1 / (density.alpha - 1) : 1;
    const top = density.family === "gaussian" ? 1 / (2 * Math.PI * Math.sqrt(det))
      : (power + 1) / (Math.PI * ratio * Math.sqrt(det));
    return (x, y) => {
      const u = x - mx, v = y - my, q = (c * u * u - 2 * b * u * v + a * v * v) / det;
      return share * top * (density.family === "gaussian" ? Math.exp(-q / 2) : Math.max(0, 1 - q / ratio) ** power);
    };
  });
  return (x, y) => parts.reduce((sum, part) => sum + part(x, y), 0);
}

const FINE = 112;
export function sample(density) {
  const pdf = pdf_of(density);
  return Array.from({ length: FINE + 1 }, (_, j) => Array.from({ length: FINE + 1 }, (_, i) => pdf(i / FINE, j / FINE)));
}

// A density: colour, contour lines, the thick edge of a bounded support, and each component with its share beside it.
export function density(canvas, parameters, values, top, opacity = 0.9) {
  const g = canvas.getContext("2d"), { width, height } = canvas;
  const layer = new OffscreenCanvas(FINE + 1, FINE + 1), on = layer.getContext("2d"), pixels = on.createImageData(FINE + 1, FINE + 1);
  values.flat().forEach((value, k) => {
    const share = Math.sqrt(value / top);
    pixels.data.set([...colour(share), value < 1e-4 * top ? 0 : 255 * cover(share, opacity)], 4 * k);
  });
  on.putImageData(pixels, 0, 0);
  g.imageSmoothingEnabled = true; g.drawImage(layer, 0, 0, width, height);
  g.globalAlpha = opacity;
  for (let level = 1; level < 8; level += 1) {
    g.strokeStyle = css(level / 8); g.lineWidth = Math.max(1.2, width / 400);
    contour(g, values, top * (level / 8) ** 2, width / FINE, height / FINE);
  }
  g.globalAlpha = 1;
  const bound = edge(parameters), many = parameters.components.length > 1;
  if (bound || many) for (const c of parameters.components) ellipse(g, c, bound || 1, Boolean(bound), width, height);
  if (many) shares(canvas, parameters.components, bound || 1);
}

// The share of each component, beside its ellipse, with a line to its middle; those without room are left out. The boxes
// are kept with the canvas.
function shares(canvas, components, radius) {
  const g = canvas.getContext("2d"), { width, height } = canvas, unit = width / (canvas.clientWidth || width), size = 13 * unit;
  g.font = `600 ${size}px system-ui, sans-serif`; g.textAlign = "center"; g.textBaseline = "middle";
  const texts = components.map(c => `${Math.round(100 * c.share)} %`);
  const marks = components.map(({ mean: [x, y], covariance: [[a], [, c]] }, i) => ({
    x: x * width, y: y * height, rx: radius * Math.sqrt(a) * width + 6 * unit, ry: radius * Math.sqrt(c) * height + 6 * unit,
    wide: g.measureText(texts[i]).width + 0.7 * size, high: 1.4 * size,
  }));
  const boxes = place_labels(marks, width, height);
  boxes.forEach((box, i) => {
    if (!box) return;
    g.strokeStyle = "#fffc"; g.lineWidth = Math.max(1, width / 500);
    g.beginPath(); g.moveTo(marks[i].x, marks[i].y); g.lineTo(box.x, box.y); g.stroke();
    g.fillStyle = "#fff"; g.beginPath(); g.arc(marks[i].x, marks[i].y, Math.max(2.5, width / 180), 0, 7); g.fill();
  });
  boxes.forEach((box, i) => {
    if (!box) return;
    g.fillStyle = "#0c0f10d9"; g.beginPath();
    g.roundRect(box.x - box.width / 2, box.y - box.height / 2, box.width, box.height, box.height / 4); g.fill();
    g.fillStyle = "#fff"; g.fillText(texts[i], box.x, box.y);
  });
  canvas.dataset.labels = JSON.stringify(boxes);
}

function ellipse(g, { mean, covariance: [[a, b], [, c]] }, radius, thick, width, height) {
  const middle = (a + c) / 2, spread = Math.hypot((a - c) / 2, b);
  const long = radius * Math.sqrt(middle + spread), short = radius * Math.sqrt(Math.max(middle - spread, 0));
  const angle = Math.atan2(2 * b, a - c) / 2;
  g.save(); g.scale(width, height); g.beginPath(); g.ellipse(mean[0], mean[1], long, short, angle, 0, 2 * Math.PI); g.restore();
  g.setLineDash(thick ? [] : [6, 4]);
  const line = thick ? Math.max(2.5, width / 130) : Math.max(1.2, width / 350);
  g.strokeStyle = "#000"; g.lineWidth = line + 2; g.stroke();
  g.strokeStyle = "#fff"; g.lineWidth = line; g.stroke();
  g.setLineDash([]);
}

// Marching squares: in each small square the line between corners above and below the level.
function contour(g, values, level, wide, high) {
  g.beginPath();
  for (let j = 0; j < FINE; j += 1) for (let i = 0; i < FINE; i += 1) {
    const corner = [[i, j], [i + 1, j], [i + 1, j + 1], [i, j + 1]].map(([x, y]) => [x, y, values[y][x] - level]);
    const crossings = [];
    for (let k = 0; k < 4; k += 1) {
      const [ax, ay, a] = corner[k], [bx, by, b] = corner[(k + 1) % 4];
      if (a > 0 !== b > 0) { const t = a / (a - b); crossings.push([(ax + t * (bx - ax)) * wide, (ay + t * (by - ay)) * high]); }
    }
    for (let k = 0; k + 1 < crossings.length; k += 2) { g.moveTo(...crossings[k]); g.lineTo(...crossings[k + 1]); }
  }
  g.stroke();
}

export function scale_bar(place, top) {
  const bar = document.createElement("canvas"); bar.width = 140; bar.height = 10;
  const g = bar.getContext("2d");
  for (let x = 0; x < 140; x += 1) { g.fillStyle = css(x / 139); g.fillRect(x, 0, 1, 10); }
  bar.setAttribute("aria-hidden", "true");
  place.replaceChildren("0", bar, `${+top.toPrecision(3)} × even attention`);
  place.hidden = false;
}

export function matrix(canvas, rows) {
  const g = backdrop(canvas), top = highest(rows), h = canvas.height / rows.length, w = canvas.width / rows[0].length;
  rows.forEach((row, j) => row.forEach((value, i) => {
    g.fillStyle = css(value / top);
    g.fillRect(Math.round(i * w), Math.round(j * h), Math.ceil(w) , Math.ceil(h));
  }));
}
