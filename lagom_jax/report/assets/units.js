// Numbers as people read them, as lagom_jax/units.py has it.
const threeDigits = (value) =>
  value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
const inLargest = (amount, units) => {
  const found = units.find(([unit]) => amount >= unit);
  return found ? `${threeDigits(amount / found[0])} ${found[1]}` : null;
};
/** A duration, of nanoseconds. */
const inSeconds = (ns) =>
  ns === 0 ? "0" : inLargest(ns, [[1e9, "s"], [1e6, "ms"], [1e3, "us"]]) ||
    `${Number(ns.toPrecision(3))} ns`;
const inBytes = (count) =>
  inLargest(count, [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) ||
  `${count.toFixed(0)} B`;
const inPercent = (part, whole) => {
  if (!whole) return "-";
  const share = (100 * part) / whole;
  return share >= 10 || !share ? `${share.toFixed(0)} %` : `${share.toFixed(1)} %`;
};
/** An element with attributes; what is given as text stays text. */
const element = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
};
const say = (words) => { document.getElementById("said").textContent = words; };
