"use strict";

// ---- theme: follows the system until the button is pressed; remembered only as long as the page is open
{
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const show = () => {
    button.textContent = isDark() ? "Light theme" : "Dark theme";
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    show();
  });
  system.addEventListener("change", show);
  button.hidden = false;
  show();
}

// ---- sorting: one way, the other way, then the order of the stack again
{
  const opposite = { ascending: "descending", descending: "ascending" };

  const valueOf = (row, column) => {
    const cell = row.cells[column];
    return "value" in cell.dataset ? cell.dataset.value : cell.textContent.trim();
  };

  const compare = (a, b) => {
    const numeric = !Number.isNaN(Number(a)) && !Number.isNaN(Number(b));
    return numeric ? Number(a) - Number(b) : a.localeCompare(b);
  };

  const sort = (body, original, column, order) => {
    const rows = [...original];
    if (order) {
      const sign = order === "ascending" ? 1 : -1;
      rows.sort((one, other) => {
        const [a, b] = [valueOf(one, column), valueOf(other, column)];
        // What is not known comes last, however it is sorted.
        if (!a || !b) return (a ? 0 : 1) - (b ? 0 : 1);
        return sign * compare(a, b);
      });
    }
    body.append(...rows);
  };

  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const original = [...body.rows];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const first = head.dataset.first;
        const now = head.getAttribute("aria-sort");
        const order = !now ? first : now === first ? opposite[first] : null;
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        if (order) head.setAttribute("aria-sort", order);
        sort(body, original, column, order);
      });
    });
  }
}

// ---- printing: what is folded is printed too
{
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    opened.forEach((one) => (one.open = true));
  });
  addEventListener("afterprint", () => opened.forEach((one) => (one.open = false)));
}
