// Buttons of any page, and what happens when it is printed.

/** Asks whatever draws with colours to draw again. */
const redraw = (scale) => dispatchEvent(new CustomEvent("redraw", { detail: scale }));
const theme = document.getElementById("theme");
theme.hidden = false;
theme.addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  say(dark ? "Light" : "Dark");
  redraw();
});

const copied = async (text) => {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Without that permission, the old way.
    const area = element("textarea", { "aria-hidden": "true", class: "unseen" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
};
for (const button of document.querySelectorAll(".copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const done = await copied(button.parentElement.querySelector("code").textContent);
    button.textContent = done ? "Copied" : "Select and copy";
    say(done ? "Copied" : "It could not be copied; select the text");
    button.focus();
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}

let before;
addEventListener("beforeprint", () => {
  before = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = "light";
  redraw(3);
});
addEventListener("afterprint", () => {
  if (before) document.documentElement.dataset.theme = before;
  else delete document.documentElement.dataset.theme;
  redraw();
});
document.documentElement.dataset.ready = "true";
