// Blocks that are wider than the page can be scrolled with the keyboard.
function reachable() {
  for (const block of document.querySelectorAll("pre")) {
    if (block.scrollWidth > block.clientWidth) block.tabIndex = 0; else block.removeAttribute("tabindex");
  }
}

// What the theme leaves unsaid to those who listen: levels of captions, names of the two sidebars.
function named() {
  for (const caption of document.querySelectorAll(".caption[role=heading]")) caption.setAttribute("aria-level", "2");
  for (const [place, name] of [[".sidebar-drawer", "All pages"], [".toc-drawer", "This page"]]) {
    document.querySelector(place)?.setAttribute("aria-label", name);
  }
}
addEventListener("load", named);
addEventListener("load", reachable);
addEventListener("resize", reachable);
