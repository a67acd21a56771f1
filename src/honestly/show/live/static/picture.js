// Files to save, made by the browser. Written pages contain this file, too (`html.py`), so it imports nothing.

// A drawing at an address as the pixels of a PNG file, at twice its size.
export async function toPng(address) {
  const image = new Image();
  image.src = address;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [2 * image.naturalWidth, 2 * image.naturalHeight];
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return pngOf(canvas);
}

export function pngOf(canvas) {
  return new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
}

export function offer(name, content) {
  const link = document.createElement("a");
  [link.href, link.download] = [URL.createObjectURL(content), name];
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
