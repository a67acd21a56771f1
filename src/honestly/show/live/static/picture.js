// Files to save, made by the browser. Written pages contain this file, too (`html.py`), so it imports nothing.

// A drawing at an address as the pixels of a PNG file, at twice its size unless that is more than a browser can draw.
export async function toPng(address) {
  const image = new Image();
  image.src = address;
  await image.decode();
  const canvas = document.createElement("canvas");
  const scale = Math.min(2, 16000 / image.naturalHeight);
  [canvas.width, canvas.height] = [scale * image.naturalWidth, scale * image.naturalHeight];
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
}

export function offer(name, content) {
  const link = document.createElement("a");
  [link.href, link.download] = [URL.createObjectURL(content), name];
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
