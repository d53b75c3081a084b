// A click on a picture shows it as large as it is; another click, or Escape, closes it.
document.addEventListener("DOMContentLoaded", () => {
  const dialog = document.createElement("dialog");
  dialog.className = "enlarged";
  dialog.innerHTML = "<img alt=''>";
  dialog.addEventListener("click", () => dialog.close());
  document.body.append(dialog);
  for (const img of document.querySelectorAll(".content img")) {
    if (img.closest("a")) continue;
    const enlarge = () => {
      Object.assign(dialog.firstChild, { src: img.src, alt: img.alt });
      dialog.showModal();
    };
    Object.assign(img, { tabIndex: 0, role: "button", title: "Enlarge" });
    img.addEventListener("click", enlarge);
    img.addEventListener("keydown", event => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      enlarge();
    });
  }
});
