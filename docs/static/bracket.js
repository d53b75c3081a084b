// The bracket of chapter 6 with sliders. A step of one device on b images takes
// one(b) = max(python, b * image); a step of N devices on B images takes at least
// max(N * python, one(B / N)) and at most N * python + one(B / N) + (N - 1) * all-reduce.
(() => {
  // Name, words, unit, the decades of its slider, and its start: milliseconds but image.
  const SLIDERS = [
    ["python", "Python issues a step", "ms", -2, 2, 1],
    ["image", "a device computes an image", "µs", -1, 3, 300],
    ["reduce", "an all-reduce between two", "ms", -2, 2, 0.25],
    ["batch", "the batch", "images", 0, 14, 256], // of two
  ];
  const [LOW, HIGH] = [0, 14]; // the batches of the picture: powers of two
  const say = x => (Number.isInteger(x) ? x : Number(x.toPrecision(3))).toLocaleString("en");

  function bounds(batch, n, { python, image, reduce }) {
    const one = b => Math.max(python, b * image / 1e3);
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
    const base = name => (name === "batch" ? 2 : 10);
    const rows = SLIDERS.map(([name, words, , low, high, start]) => `<label><span>${words}</span>
      <input type="range" name="${name}" min="${low}" max="${high}"
        step="${name === "batch" ? 1 : 0.01}"
        value="${Math.log(start) / Math.log(base(name))}"><output></output></label>`);
    box.innerHTML = `<form>${rows.join("")}<label><span>devices</span><select name="n">
      <option>2</option><option>4</option><option>8</option></select></label></form>
      <p role="status"></p><svg viewBox="0 0 640 300" role="img"></svg>`;
    const [form, said, svg] = box.children;

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
      said.textContent = `${say(values.batch)} images: one device takes ${say(here.one)} ms, `
        + `${n} take ${say(here.low)} to ${say(here.high)} ms: ${verdict}. `
        + (possible ? `${n} devices ${ends.filter(Boolean).join(", and ")}.`
          : `${n} devices pay at none of these batches.`);

      const batches = [...Array(4 * (HIGH - LOW) + 1).keys()].map(k => 2 ** (LOW + k / 4));
      const points = batches.map(b => bounds(b, n, values));
      const all = points.flatMap(p => [p.one, p.low, p.high]).map(Math.log10);
      const [least, most] = [Math.min(...all), Math.max(...all)];
      const x = b => 50 + 570 * (Math.log2(b) - LOW) / (HIGH - LOW);
      const y = ms => 250 - 230 * (Math.log10(ms) - least) / (most - least || 1);
      const line = key => points.map((p, k) => `${x(batches[k])} ${y(p[key])}`);
      const ticks = [];
      for (let e = Math.ceil(least); e <= most; e += 1) {
        ticks.push(`<text x="44" y="${y(10 ** e) + 4}" text-anchor="end">${say(10 ** e)}</text>`);
      }
      for (let e = LOW; e <= HIGH; e += 2) {
        ticks.push(`<text x="${x(2 ** e)}" y="268" text-anchor="middle">${say(2 ** e)}</text>`);
      }
      svg.ariaLabel = said.textContent;
      svg.innerHTML = `<path class="band"
          d="M${line("low").join("L")}L${line("high").reverse().join("L")}Z"/>
        <path d="M${line("one").join("L")}"/>
        <line x1="${x(values.batch)}" x2="${x(values.batch)}" y1="20" y2="250"/>${ticks.join("")}
        <text x="58" y="20">ms of a step; line: one device, band: ${n} devices</text>
        <text x="335" y="290" text-anchor="middle">global batch size</text>`;
    }
    form.addEventListener("input", show);
    form.addEventListener("submit", event => event.preventDefault());
    show();
  }

  document.addEventListener("DOMContentLoaded", () =>
    document.querySelectorAll(".bracket-calculator").forEach(calculator));
})();
