// All-reduce step by step: what each device holds after each round of copies.
// A schedule is a list of rounds, a round a list of [from, to, chunks, add]: the chunks
// go from one device to another, which adds them or replaces its own.
(() => {
  const range = n => [...Array(n).keys()];

  const SCHEDULES = {
    // Through device 0, whose link carries one array at a time.
    book: n => [
      ...range(n - 1).map(k => [[k + 1, 0, range(n), true]]),
      ...range(n - 1).map(k => [[0, k + 1, range(n), false]]),
    ],
    // In pairs, then pairs of pairs; and the same way back.
    tree: n => {
      const up = [];
      for (let gap = 1; gap < n; gap *= 2) {
        up.push(range(n).filter(k => k % (2 * gap) === gap)
          .map(k => [k, k - gap, range(n), true]));
      }
      const down = up.map(round => round.map(([from, to, c]) => [to, from, c, false]));
      return [...up, ...down.reverse()];
    },
    // Every device sends one chunk to the next: first sums, then finished sums.
    ring: n => range(2 * n - 2).map(round => range(n).map(k => {
      const chunk = (k - round + 2 * n) % n;
      return [k, (k + 1) % n, [chunk], round < n - 1];
    })),
  };

  // values[device][chunk] after some rounds, and chunks sent or received by each device.
  function after(schedule, n, rounds) {
    const values = range(n).map(k => Array(n).fill(k + 1));
    const [sent, received] = [Array(n).fill(0), Array(n).fill(0)];
    for (const round of schedule.slice(0, rounds)) {
      const before = values.map(row => [...row]);
      for (const [from, to, chunks, add] of round) {
        for (const c of chunks) {
          values[to][c] = before[from][c] + (add ? values[to][c] : 0);
        }
        sent[from] += chunks.length;
        received[to] += chunks.length;
      }
    }
    return { values, busiest: Math.max(...sent, ...received) / n };
  }

  function player(box) {
    box.innerHTML = `<form><label>All-reduce <select name="kind">
        <option value="book">of the book</option><option value="tree">by a tree</option>
        <option value="ring">in a ring</option></select></label>
      <label>devices <select name="n">${[2, 3, 4, 5, 6, 8].map(n =>
        `<option${n === 4 ? " selected" : ""}>${n}</option>`).join("")}</select></label>
      <button type="button" name="back">Back</button>
      <button type="button" name="step">Step</button>
      <button type="button" name="play">Play</button></form>
      <p role="status"></p><svg viewBox="-130 -110 260 220" aria-hidden="true"></svg>
      <p><small>Orange: chunks on their way, a larger circle for more of them.
      Keys: ← and →.</small></p><table></table>`;
    const [form, said, ring, , table] = box.children;
    let done = 0, timer = null;

    // The devices in a circle, and the chunks of the last round on their way.
    function draw(n, round) {
      const at = k => [90 * Math.sin(2 * Math.PI * k / n), -80 * Math.cos(2 * Math.PI * k / n)];
      const links = round.map(([from, to]) => {
        const [[x1, y1], [x2, y2]] = [at(from), at(to)];
        return `<line x1="${x1}" y1="${y1}" x2="${x2}" y2="${y2}"/>`;
      });
      const devices = range(n).map(k => `<g transform="translate(${at(k)})">
        <rect x="-17" y="-15" width="34" height="30" rx="5"/><text y="5">${k}</text></g>`);
      ring.innerHTML = links.join("") + devices.join("");
      const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
      for (const [from, to, chunks] of round) {
        const dot = document.createElementNS(ring.namespaceURI, "circle");
        dot.setAttribute("r", 4 + 8 * chunks.length / n);
        ring.append(dot);
        const [start, end, half] = [at(from), at(to), at(from).map((x, i) => (x + at(to)[i]) / 2)];
        const place = ([x, y]) => ({ transform: `translate(${x}px, ${y}px)` });
        dot.animate([place(still ? half : start), place(still ? half : end)],
          { duration: still ? 1 : 700, fill: "forwards" });
      }
    }

    const stop = () => { clearInterval(timer); timer = null; };
    function show() {
      const n = Number(form.n.value), schedule = SCHEDULES[form.kind.value](n);
      done = Math.min(done, schedule.length);
      const { values, busiest } = after(schedule, n, done);
      const last = done ? schedule[done - 1] : [];
      draw(n, last);
      const total = n * (n + 1) / 2;
      const cell = (k, c) => {
        const into = last.some(([, to, chunks]) => to === k && chunks.includes(c));
        const out = last.some(([from, , chunks]) => from === k && chunks.includes(c));
        const marks = [into && "into", out && "out", values[k][c] === total && "total"];
        const arrow = into ? " ←" : out ? " →" : "";
        return `<td class="${marks.filter(Boolean).join(" ")}">${values[k][c]}${arrow}</td>`;
      };
      table.innerHTML = range(n).map(k =>
        `<tr><th scope="row">device ${k}</th>${range(n).map(c => cell(k, c)).join("")}</tr>`
      ).join("");
      said.textContent = `Round ${done} of ${schedule.length}; through the busiest link: `
        + `${Number(busiest.toFixed(2))} ${busiest === 1 ? "array" : "arrays"}.`;
      // Not `disabled`, which would take the focus of the keyboard away.
      form.back.ariaDisabled = done === 0;
      form.step.ariaDisabled = done === schedule.length;
      if (done === schedule.length) stop();
      form.play.textContent = timer ? "Pause" : "Play";
    }
    const length = () => SCHEDULES[form.kind.value](Number(form.n.value)).length;
    const go = by => { stop(); done = Math.max(0, done + by); show(); };
    form.back.addEventListener("click", () => go(-1));
    form.step.addEventListener("click", () => go(1));
    form.addEventListener("keydown", ({ key, target }) => {
      if (target.tagName === "BUTTON" && /^Arrow(Left|Right)$/.test(key)) {
        go(key === "ArrowRight" ? 1 : -1);
      }
    });
    form.play.addEventListener("click", () => {
      if (timer) stop();
      else {
        if (done === length()) done = 0;
        timer = setInterval(() => { done += 1; show(); }, 900);
      }
      show();
    });
    form.addEventListener("change", () => { stop(); done = 0; show(); });
    form.addEventListener("submit", event => event.preventDefault());
    show();
  }

  document.addEventListener("DOMContentLoaded", () =>
    document.querySelectorAll(".all-reduce-player").forEach(player));
})();
