// The bracket of chapter 6 with sliders. A step of one device on b images takes
// one(b) = python + b * image; a step of N devices on B images takes at least
// max(N * python, one(B / N)) and at most N * python + one(B / N) + (N - 1) * all-reduce.
(() => {
  // Name, words, unit and the decades of its slider: milliseconds but image.
  const SLIDERS = [
    ["python", "Python issues a step", "ms", -2, 2],
    ["image", "a device computes an image", "µs", -1, 3],
    ["reduce", "an all-reduce between two", "ms", -2, 2],
    ["batch", "the batch", "images", 0, 14], // of two
  ];
  const [LOW, HIGH] = [0, 14]; // the batches of the picture: powers of two
  const say = x => (Number.isInteger(x) ? x : Number(x.toPrecision(3))).toLocaleString("en");

  const range = (a, b) => (say(a) === say(b) ? say(a) : `${say(a)} to ${say(b)}`);

  function bounds(batch, n, { python, image, reduce }) {
    const one = b => python + b * image / 1e3;
    const device = one(batch / n);
    return {
      one: one(batch),
      low: Math.max(n * python, device),
      high: n * python + device + (n - 1) * reduce,
    };
  }

  // The smallest batch from which on a condition holds, in steps of a 32nd of a doubling.
  function from(holds) {
    let found = null;
    for (let e = HIGH; e >= LOW && holds(2 ** e); e -= 1 / 32) found = 2 ** e;
    return found;
  }

  function calculator(box) {
    const records = JSON.parse(box.dataset.records); // a button each; the first is the start
    const base = name => (name === "batch" ? 2 : 10);
    const rows = SLIDERS.map(([name, words, , low, high]) => `<label><span>${words}</span>
      <input type="range" name="${name}" min="${low}" max="${high}"
        step="${name === "batch" ? 1 : "any"}"><output></output></label>`);
    box.innerHTML = `<form><p>Start from a record: ${records.map(({ name }) =>
      `<button type="button">${name}</button>`).join(" ")}</p>
      ${rows.join("")}<label><span>devices</span><select name="n">
      <option>2</option><option>4</option><option>8</option></select></label></form>
      <p role="status"></p><svg viewBox="0 -8 640 308" role="img"></svg>`;
    const [form, said, svg] = box.children, buttons = form.querySelectorAll("button");
    let measured = []; // the steps of the record from which the sliders start

    function choose(chosen) {
      measured = records[chosen]?.measured ?? [];
      buttons.forEach((button, k) => { button.ariaPressed = k === chosen; });
      show();
    }
    function start(chosen) {
      const values = { ...records[chosen], batch: 256 };
      for (const [name] of SLIDERS) {
        form[name].value = Math.log(values[name]) / Math.log(base(name));
      }
      form.n.value = "2";
      choose(chosen);
    }

    function show() {
      const n = Number(form.n.value), values = {};
      for (const [name, , unit] of SLIDERS) {
        values[name] = base(name) ** Number(form[name].value);
        const words = `${say(values[name])} ${unit}`;
        form[name].nextElementSibling.textContent = words;
        form[name].setAttribute("aria-valuetext", words);
      }
      const here = bounds(values.batch, n, values);
      const certain = from(b => { const x = bounds(b, n, values); return x.high < x.one; });
      const possible = from(b => { const x = bounds(b, n, values); return x.low < x.one; });
      const verdict = here.high < here.one ? "certain to pay"
        : here.low < here.one ? "may pay" : "cannot pay";
      const end = (words, batch) => batch ? `${words} ${say(Math.ceil(batch))} images on` : "";
      const ends = [end("can pay from", possible), end("are certain to from", certain)];
      said.textContent = `${say(values.batch)} images: by the bracket one device takes ${say(here.one)} ms, `
        + `${n} take ${range(here.low, here.high)} ms: ${verdict}. `
        + (possible ? `${n} devices ${ends.filter(Boolean).join(", and ")}.`
          : `${n} devices pay at none of these batches.`);

      // How many times as fast as one: at worst and at best, on a scale of doublings.
      const speed = b => { const p = bounds(b, n, values); return [p.one / p.high, p.one / p.low]; };
      const batches = [...Array(4 * (HIGH - LOW) + 1).keys()].map(k => 2 ** (LOW + k / 4));
      const speeds = batches.map(speed);
      const least = Math.floor(Math.log2(Math.min(0.5, ...speeds.map(([worst]) => worst), ...measured.map(([, times]) => times))));
      const x = b => 60 + 545 * (Math.log2(b) - LOW) / (HIGH - LOW);
      const y = times => 245 - 225 * (Math.log2(times) - least) / (Math.log2(n) - least);
      const line = end => speeds.map((ends, k) => `${x(batches[k])} ${y(ends[end])}`);
      const ticks = [];
      for (let e = least; 2 ** e <= n; e += 1) {
        ticks.push(`<text x="52" y="${y(2 ** e) + 4}" text-anchor="end">${say(2 ** e)}</text>`);
      }
      for (let e = LOW; e <= HIGH; e += 2) {
        ticks.push(`<text x="${x(2 ** e)}" y="264" text-anchor="middle">${say(2 ** e)}</text>`);
      }
      const dots = measured.map(([batch, times]) =>
        `<circle cx="${x(batch)}" cy="${y(times)}" r="5"/>`);
      const [worst, best] = speed(values.batch), at = x(values.batch);
      const [left, beside] = at < 320 ? ["start", 12] : ["end", -12];
      svg.ariaLabel = said.textContent;
      svg.innerHTML = `<rect class="slower" x="60" width="545" y="${y(1)}" height="${245 - y(1)}"/>
        <path class="band" d="M${line(0).join("L")}L${line(1).reverse().join("L")}Z"/>
        <line x1="60" x2="605" y1="${y(1)}" y2="${y(1)}"/>
        <line x1="${at}" x2="${at}" y1="20" y2="245"/>${ticks.join("")}
        ${dots.join("")}
        <path class="here" d="M${at} ${y(worst) + 2}V${y(best) - 2}"/>
        <text class="here" x="${at + beside}" y="${Math.max(34, y(best) - 6)}"
          text-anchor="${left}">${range(worst, best)} times as fast</text>
        <text x="600" y="${y(1) + 16}" text-anchor="end">slower than one device</text>
        <text x="60" y="12">${n} devices: how many times as fast as one, at worst to at best</text>
        ${dots.length ? `<text x="600" y="238" text-anchor="end">○ measured</text>` : ""}
        <text x="332" y="290" text-anchor="middle">images in a batch</text>`;
    }
    buttons.forEach((button, k) => button.addEventListener("click", () => start(k)));
    form.addEventListener("input", ({ target }) =>
      (target === form.batch ? show() : choose(-1)));
    form.addEventListener("submit", event => event.preventDefault());
    start(0);
  }

  document.addEventListener("DOMContentLoaded", () =>
    document.querySelectorAll(".bracket-calculator").forEach(calculator));
})();
