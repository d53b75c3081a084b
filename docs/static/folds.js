// Paper has no folds: what is folded is printed open, and folded again afterwards.
(() => {
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll(".content details:not([open])")];
    opened.forEach(details => { details.open = true; });
  });
  addEventListener("afterprint", () => opened.forEach(details => { details.open = false; }));
})();
