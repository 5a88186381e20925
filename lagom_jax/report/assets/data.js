// The data of the page, its timelines and its table.

/** The data of the page; large ones are packed. */
const unpacked = async () => {
  const { type, textContent } = document.getElementById("data");
  if (type === "application/json") return JSON.parse(textContent);
  const bytes = Uint8Array.from(atob(textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
};
const data = await unpacked();
const timelines = document.querySelector(".canvas") ? new Timelines(data) : null;
const sites = document.getElementById("table") ? new Sites(data, timelines) : null;
for (const button of timelines ? document.querySelectorAll("button[data-task]") : []) {
  button.hidden = false;
  // What is exposed is said of the step as it is: the first of the two.
  button.addEventListener("click",
    () => timelines.go(timelines.nameOf(button.dataset.task, 0), 0));
}
addEventListener("redraw", ({ detail }) => timelines?.draw(detail ?? undefined));
