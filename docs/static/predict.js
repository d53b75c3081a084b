// A reader predicts before the output shows: a field for the guess stands in front of
// each output that a prediction asks about. Without this script the outputs are folded
// by <details> alone. A guess is kept in this browser, where it allows that for files.
(() => {
  const kept = {
    get: key => { try { return localStorage.getItem(key); } catch { return null; } },
    set: (key, value) => { try { localStorage.setItem(key, value); } catch {} },
  };

  // At most three digits of a number that has a fraction.
  const short = text => {
    const value = Number(text);
    return text && Number.isFinite(value) && !Number.isInteger(value)
      ? String(Number(value.toPrecision(3))) : text;
  };

  // A guess as a number, which may have commas in front of three digits.
  const number = text => Number(text.trim().replace(/,(?=\d{3}\b)/g, "") || NaN);
  const isNumber = text => Number.isFinite(number(text));

  // The unit that the name of an answer begins with.
  const unit = what => (/^(ms|%|bytes|pages|steps|digits|TFLOP\/s)(?= )/.exec(what) || [""])[0];

  // Exact answers are met or not; of a measured one a guess is good within a factor of 1.5.
  function verdict(guess, { what, answer, exact }) {
    if (!isNumber(answer))
      return guess.trim().toLowerCase() === answer.toLowerCase() ? "right" : "wrong";
    const [g, t] = [number(guess), number(answer)];
    if (g === t) return "right";
    if (g * t <= 0) return `off by ${Number(Math.abs(g - t).toPrecision(2))} ${unit(what)}`.trim();
    const ratio = Math.max(g / t, t / g);
    const off = ratio <= 1.1 ? "close" : `off by a factor of ${Number(ratio.toPrecision(2))}`;
    if (exact === "true") return `wrong, ${off}`;
    return ratio > 1.1 && ratio <= 1.5 ? `good, ${off}` : off;
  }

  // The guess and the answer on one logarithmic axis.
  function axis(guess, truth) {
    const [g, t] = [number(guess), number(truth)];
    if (!(g > 0) || !(t > 0)) return "";
    const low = Math.log10(Math.min(g, t) / 3), high = Math.log10(Math.max(g, t) * 3);
    const x = value => 10 + 380 * (Math.log10(value) - low) / (high - low);
    return `<svg viewBox="0 0 400 34" role="img" aria-label="your guess ${g}, answer ${t}">
      <line x1="10" x2="390" y1="17" y2="17" stroke="currentColor"/>
      <circle cx="${x(g)}" cy="17" r="6" fill="none" stroke="currentColor" stroke-width="2"/>
      <circle cx="${x(t)}" cy="17" r="6" fill="var(--color-brand-primary)"/></svg>
      <small>○ your prediction, ● the output</small>`;
  }

  // A field for each answer of the output; one without a name if it has none.
  function ask(details, number) {
    const key = `${location.pathname}#${number}:guesses`;
    const facts = [...details.querySelectorAll(".answer")].map(e => e.dataset);
    if (!facts.length) facts.push({ what: "", answer: "" });
    const form = document.createElement("form");
    form.className = "prediction";
    for (const { what } of facts) {
      const label = document.createElement("label");
      label.textContent = `Your prediction${what && `, ${what}`}:`;
      label.innerHTML += `<input required autocomplete="off" size="12">`;
      form.append(label, " ");
    }
    form.insertAdjacentHTML("beforeend", `<button>Lock it in</button>
      <button type="button">Show without a prediction</button><p role="status" tabindex="-1"></p>`);
    const [inputs, said] = [form.querySelectorAll("input"), form.querySelector("p")];
    let locked = false;
    // Not `disabled`, which would take the focus of the keyboard away.
    const lock = guesses => {
      locked = true;
      form.querySelectorAll("button").forEach(e => { e.ariaDisabled = true; });
      inputs.forEach(e => { e.readOnly = true; });
      details.open = true;
      said.textContent = "";
      guesses.slice(0, facts.length).forEach((guess, k) => {
        const { answer } = facts[k];
        inputs[k].value = guess;
        said.append(answer
          ? `You said ${guess}, here it was ${short(answer)}: ${verdict(guess, facts[k])}. `
          : `You said ${guess}. `);
        if (answer) said.insertAdjacentHTML("beforeend", axis(guess, answer));
      });
    };
    form.addEventListener("submit", event => {
      event.preventDefault();
      if (locked) return;
      const guesses = [...inputs].map(input => input.value);
      const word = facts.findIndex(({ answer }, k) => isNumber(answer) && !isNumber(guesses[k]));
      if (word >= 0) {
        said.textContent = `"${guesses[word]}" is not a number: write one such as 12 or 0.5, without a unit.`;
        inputs[word].focus();
        return;
      }
      kept.set(key, JSON.stringify(guesses));
      lock(guesses);
      said.focus();
    });
    form.querySelector("[type=button]").addEventListener("click", () => {
      if (!locked) lock([]);
    });
    details.before(form);
    const before = kept.get(key);
    if (before !== null) lock(JSON.parse(before));
  }

  document.addEventListener("DOMContentLoaded", () =>
    document.querySelectorAll(".tag_hide-output details.hide").forEach(ask));
})();
