// A picture of one's own: read by the browser, shrunk if it is too large to send, refused in words if it cannot be read.

const SIDE = 2048;  // pixels of the longer side of what is sent in place of a picture that is too large
const QUALITY = 0.9;
const FORMATS = { "89504e47": "PNG", ffd8ff: "JPEG", 47494638: "GIF", "424d": "BMP", "49492a00": "TIFF", "4d4d002a": "TIFF", 52494646: "WebP" };

// The format of a file by its first bytes, of those that the server reads; null for others.
async function format_of(file) {
  const bytes = new Uint8Array(await file.slice(0, 12).arrayBuffer()), hex = [...bytes].map(b => b.toString(16).padStart(2, "0")).join("");
  const found = Object.keys(FORMATS).find(start => hex.startsWith(start));
  return found && (FORMATS[found] !== "WebP" || hex.slice(16, 24) === "57454250") ? FORMATS[found] : null;
}

const megabytes = bytes => `${(bytes / 1e6).toFixed(1)} MB`;
const size = picture => `${picture.width} × ${picture.height}`;
const is_heic = file => /hei[cf]/i.test(file.type) || /\.hei[cf]$/i.test(file.name);

function refusal(file) {
  if (is_heic(file)) return "This browser cannot read HEIC photographs. Save it as JPEG (on an iPhone: Settings, Camera, Formats, Most Compatible), and choose it again.";
  return `${file.name || "The file"} is not a picture that this browser can read. Choose a JPEG or PNG file.`;
}

// {file, picture, note}: what is sent, what is shown (null if the browser cannot show it), and a line about it. An error
// with words for people if there is nothing to send.
export async function prepare(file, limits) {
  if (!file.size) throw new Error(`${file.name || "The file"} is empty. Choose another.`);
  const format = await format_of(file);
  let picture;
  try { picture = await createImageBitmap(file, { imageOrientation: "from-image" }); }
  catch {
    // The server reads TIFF, which most browsers do not.
    if (format === "TIFF" && file.size <= limits.bytes) return { file, picture: null, note: "This browser cannot show TIFF: attention is drawn without the picture." };
    throw new Error(refusal(file));
  }
  const long = Math.max(picture.width, picture.height) / Math.min(picture.width, picture.height);
  const squeezed = long > 4 ? ` It is ${Math.round(long)} times as long as wide: the model sees it squeezed into its square.` : "";
  const large = file.size > limits.bytes || picture.width * picture.height > limits.pixels;
  if (!large && format) return { file, picture, note: squeezed.trim() };
  const sent = await shrunk(picture);
  const note = large ? `The picture (${size(picture)}, ${megabytes(file.size)}) was shrunk to ${size(sent.picture)} before it was sent.` : "The picture was converted to JPEG before it was sent.";
  picture.close();
  return { ...sent, note: note + squeezed };
}

async function shrunk(picture) {
  const scale = Math.min(1, SIDE / Math.max(picture.width, picture.height));
  const width = Math.max(1, Math.round(scale * picture.width)), height = Math.max(1, Math.round(scale * picture.height));
  const canvas = Object.assign(document.createElement("canvas"), { width, height }), g = canvas.getContext("2d");
  g.fillStyle = "#fff"; g.fillRect(0, 0, width, height);  // under transparent parts, as the server does
  g.imageSmoothingQuality = "high"; g.drawImage(picture, 0, 0, width, height);
  const file = await new Promise(resolve => { canvas.toBlob(resolve, "image/jpeg", QUALITY); });
  if (!file) throw new Error("This browser cannot shrink the picture. Choose a smaller one.");
  return { file, picture: canvas };
}
