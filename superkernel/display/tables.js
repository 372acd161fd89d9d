"use strict";
// Tables: a click on a column's head sorts by it, the largest number or the first word on top.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  table.tHead.addEventListener("click", event => {
    const column = event.target.closest("th").cellIndex;
    const value = row => { const text = row.cells[column].textContent.replace(/[, %]/g, ""); return text === "" || Number.isNaN(Number(text)) ? text : -Number(text); };
    const sorted = [...body.rows].sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0));
    body.append(...sorted);
  });
}
