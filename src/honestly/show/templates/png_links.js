for (const svg of document.querySelectorAll(".downloads a[download$='.svg']")) {
  const link = document.createElement("a");
  link.href = "#";
  link.textContent = link.download = svg.download.replace(/svg$/, "png");
  link.onclick = async (event) => {
    event.preventDefault();
    offer(link.download, await toPng(svg.href));
  };
  svg.after(link);
}
