/* Paper is white: a page is printed in the light theme, whichever one it is read in. */
(function () {
  "use strict";
  const page = document.documentElement;
  let theme = null;
  window.addEventListener("beforeprint", () => {
    theme = page.dataset.theme;
    page.dataset.theme = "light";
  });
  window.addEventListener("afterprint", () => {
    page.dataset.theme = theme;
  });
})();
