// A click on a picture shows it as large as it is. A click, the button, Escape, Enter or
// Space closes it; a drag, which moves a large picture on a phone, does not. A film, which
// plays once, plays again.
document.addEventListener("DOMContentLoaded", () => {
  const dialog = document.createElement("dialog");
  dialog.className = "enlarged";
  dialog.ariaLabel = "Enlarged picture";
  const close = document.createElement("button");
  close.textContent = "Close";
  let pressed = null;
  dialog.addEventListener("pointerdown", event => { pressed = event; });
  dialog.addEventListener("click", event => {
    const moved = pressed
      && Math.hypot(event.clientX - pressed.clientX, event.clientY - pressed.clientY);
    pressed = null;
    if (!(moved > 10)) dialog.close();
  });
  // Sphinx's script prevents what Escape does, for the whole document.
  dialog.addEventListener("keydown", event => {
    if (!["Escape", "Enter", " "].includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    if (!event.repeat) dialog.close();
  });
  document.body.append(dialog);
  for (const img of document.querySelectorAll(".content img")) {
    if (img.closest("a")) continue;
    const enlarge = () => {
      const src = `${img.src}#${performance.now()}`; // a new address starts a film anew
      dialog.replaceChildren(close, Object.assign(new Image(), { src, alt: img.alt }));
      dialog.showModal();
    };
    const title = img.src.endsWith(".gif") ? "Play again" : "Enlarge";
    Object.assign(img, { tabIndex: 0, role: "button", title });
    img.addEventListener("click", enlarge);
    img.addEventListener("keydown", event => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      enlarge();
    });
  }
});
