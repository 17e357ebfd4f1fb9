// On a narrow screen: folds the sections of long pages, and stacks the cells of wide tables.
const NARROW = window.matchMedia("(max-width: 46em)");
const LONGEST_PAGE = 5200; // in CSS pixels
const LONGEST_SECTION = 2500;
const WORDY = 20; // mean number of characters in the cells of a table of words

const LAZY_PICTURE = 130; // height of most pictures that are loaded once they are seen

const height = (part) => part.offsetHeight + LAZY_PICTURE * part.querySelectorAll("img[loading=lazy]").length;
const subsections = (section) => [...section.children].filter((child) => child.tagName === "SECTION");

function fold(section) {
  const [heading, ...content] = section.children;
  const details = document.createElement("details");
  const summary = document.createElement("summary");
  details.className = "fold";
  summary.append(heading);
  details.append(summary, ...content);
  section.append(details);
}

function foldLong(section, longest) {
  if (height(section) <= longest) return;
  const parts = subsections(section);
  parts.forEach((part) => foldLong(part, LONGEST_SECTION)); // while it is as high as all of it
  parts.forEach(fold);
}

function reveal(element) {
  if (!element) return;
  element.querySelector(":scope > details.fold")?.setAttribute("open", "");
  for (let at = element; at; at = at.parentElement?.closest("details.fold")) {
    if (at.matches("details.fold")) at.open = true;
  }
  element.scrollIntoView();
}

const revealTarget = () => reveal(document.getElementById(decodeURIComponent(location.hash.slice(1))));

function addSwitch(root) {
  const all = [...root.querySelectorAll("details.fold")];
  if (!all.length) return;
  const button = document.createElement("button");
  const isOpen = () => all.every((details) => details.open);
  const label = () => (button.textContent = isOpen() ? "Fold all sections" : "Open all sections");
  button.className = "fold-switch";
  button.addEventListener("click", () => {
    const open = !isOpen();
    all.forEach((details) => (details.open = open));
    label();
  });
  label();
  root.querySelector("h1").after(button);
}

// Tables of figures stay as they are, and scroll.
function stack(table) {
  const titles = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
  const cells = [...table.querySelectorAll("tbody td")];
  const characters = cells.reduce((sum, cell) => sum + cell.textContent.length, 0);
  if (titles.length < 3 || characters < WORDY * cells.length) return;
  table.classList.add("stacked");
  table.querySelectorAll("tbody tr").forEach((row) =>
    [...row.cells].forEach((cell, i) => cell.setAttribute("data-column", titles[i] ?? "")),
  );
}

document.addEventListener("DOMContentLoaded", () => {
  const root = document.querySelector("[role=main] > section");
  if (!NARROW.matches || !root) return;
  root.querySelectorAll("table").forEach(stack);
  foldLong(root, LONGEST_PAGE);
  addSwitch(root);
  window.addEventListener("hashchange", revealTarget);
  window.addEventListener("load", revealTarget);
});
