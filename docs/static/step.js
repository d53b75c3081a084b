// A measured step: a timeline with a cursor, and four numbers up to it. A reader's own
// trace is drawn beside ours, which is in the page. Microseconds; a span is [name, lane,
// start, end] of one operator; lane 0 is Python, lane k + 1 is device k.
(() => {
  const isCommunication = name => /^(Copy|Sum|KVStore|_npi_add$)/.test(name);
  const ms = time => (time / 1e3).toFixed(time < 1e2 ? 3 : time < 1e4 ? 2 : 1);
  const endOf = spans => Math.max(...spans.map(s => s[3]));
  const escaped = text => text.replace(/[&<]/g, c => `&#${c.charCodeAt(0)};`);
  const laneName = lane => lane ? `device ${lane - 1}` : "Python";
  const kind = ([name, lane]) =>
    lane === 0 ? "python" : isCommunication(name) ? "communicating" : "computing";
  const spansOf = (events, batch) => events.filter(e => e.pid === batch)
    .map(e => [e.name, e.tid, e.ts, e.ts + e.dur]);

  // The events of a trace that chapter 6 has written; null if it is anything else.
  function eventsOf(text) {
    let events;
    try { events = JSON.parse(text).traceEvents; } catch { return null; }
    const isSpan = e => e?.ph === "X" && typeof e.name === "string"
      && Number.isInteger(e.tid) && e.tid < 100
      && [e.pid, e.tid, e.ts, e.dur].every(x => Number.isFinite(x) && x >= 0);
    const good = Array.isArray(events) && events.every(isSpan) && events.some(e => e.tid);
    return good ? events : null;
  }

  // How long the devices, added up, compute, communicate and idle up to a time; and the
  // part of their communicating beside which a device computes.
  function numbers(spans, until) {
    const lanes = Math.max(...spans.map(s => s[1]));
    const inside = spans.flatMap(s => [s[2], s[3]]).filter(t => t > 0 && t < until);
    const edges = [...new Set([0, until, ...inside])].sort((a, b) => a - b);
    const total = { computing: 0, communicating: 0, overlapped: 0, idle: 0 };
    edges.slice(1).forEach((end, i) => {
      const start = edges[i], time = end - start;
      const now = spans.filter(s => s[1] && s[2] <= start && s[3] >= end);
      const sends = new Set(now.filter(s => isCommunication(s[0])).map(s => s[1]));
      const works = new Set(now.filter(s => !isCommunication(s[0])).map(s => s[1]));
      total.computing += works.size * time;
      total.communicating += sends.size * time;
      if (works.size) total.overlapped += sends.size * time;
      total.idle += (lanes - new Set([...sends, ...works]).size) * time;
    });
    return total;
  }

  // A lane for Python and each device; all timelines of the page have the same scale.
  function drawing(spans, now, [from, width]) {
    const count = Math.max(...spans.map(s => s[1])) + 1;
    return [...Array(count).keys()].map(lane => {
      const bars = spans.filter(s => s[1] === lane).map(s =>
        `<rect class="${kind(s)}" x="${s[2]}" width="${s[3] - s[2]}" height="9">
        <title>${escaped(s[0])}, ${ms(s[3] - s[2])} ms</title></rect>`);
      return `<div class="lane"><span>${laneName(lane)}</span>
        <svg viewBox="${from} 0 ${width} 9" preserveAspectRatio="none" aria-hidden="true">
        <g>${bars.join("")}</g><rect class="later" x="${now}" width="1e9" height="9"/>
        <line x1="${now}" x2="${now}" y2="9"/></svg></div>`;
    }).join("");
  }

  function player(box) {
    const trace = JSON.parse(document.getElementById("step-data").textContent);
    const option = (value, chosen) =>
      `<option${value === chosen ? " selected" : ""}>${value}</option>`;
    box.innerHTML = `<form><p><label>Measured: a step of <select name="measured">
        ${option(16, 16)}${option(512)}</select> images</label>
      <button type="button" name="back">Back</button>
      <button type="button" name="step">Step</button>
      <button type="button" name="play">Play</button>
      <label>operators <input type="range" name="at" min="0"></label>
      <label><input type="checkbox" name="zoom"> zoom to the cursor</label></p>
      <p class="drop"><label>Yours: drop a <code>runs/one-step-trace.json</code> here, or
        <input type="file" name="file" accept=".json"></label></p></form>
      <p role="status"></p><div></div><table></table>`;
    const [form, said, timelines, table] = box.children;
    let yours = null, refused = "", last = false, done = 0, timer = null;

    const stop = () => { clearInterval(timer); timer = null; };
    function show() {
      const batch = Number(form.measured.value), ours = spansOf(trace.traceEvents, batch);
      const all = [["measured", ours]];
      if (yours && !refused) all.push(["yours", spansOf(yours, batch)]);
      const shown = all.filter(([, spans]) => spans.length);
      const whole = Math.max(...shown.map(([, spans]) => endOf(spans)));
      // The cursor stands where a measured operator ends; at last, where all have ended.
      const ends = [...ours].filter(s => s[1]).sort((a, b) => a[3] - b[3]);
      done = Math.min(done, ends.length);
      const now = done < ends.length ? (done ? ends[done - 1][3] : 0) : whole;
      const width = form.zoom.checked ? whole / 20 : whole;
      const from = form.zoom.checked ? Math.max(0, Math.min(now - width / 2, whole - width)) : 0;
      const titles = {
        measured: `measured, ${batch} images on two devices`,
        yours: `yours, ${batch} images`,
      };
      timelines.innerHTML = shown.map(([name, spans]) => `<figure class="${name}"><figcaption>
        ${titles[name]}</figcaption>${drawing(spans, now, [from, width])}</figure>`).join("")
        + `<p class="scale"><span>${from && ms(from)}</span><span>${ms(from + width)} ms</span></p>`;
      const columns = shown.map(([, spans]) => {
        const end = endOf(spans);
        return { step: end, ...numbers(spans, Math.min(now, end)) };
      });
      const row = (tag, head, cells) => `<tr><th scope="row">${head}</th>
        ${cells.map(text => `<${tag}>${text}</${tag}>`).join("")}</tr>`;
      table.innerHTML = row("th", "ms", shown.map(([name]) => name)) + Object.keys(columns[0])
        .map(name => row("td", name, columns.map(column => ms(column[name])))).join("");
      table.hidden = done === 0; // all zeros
      const [name, lane, start, end] = ends[Math.max(done - 1, 0)];
      said.ariaLive = timer ? "off" : "polite"; // no reading aloud while it plays
      said.textContent = refused || `${done} of ${ends.length} operators have ended, `
        + `${ms(now)} ms` + (done && done < ends.length
          ? `: ${laneName(lane)} has done ${name} in ${ms(end - start)} ms.` : ".");
      form.at.max = ends.length;
      form.at.value = done;
      form.at.setAttribute("aria-valuetext", `${done} of ${ends.length} operators`);
      // Not `disabled`, which would take the focus of the keyboard away.
      form.back.ariaDisabled = done === 0;
      form.step.ariaDisabled = last = done === ends.length;
      if (last) stop();
      form.play.textContent = timer ? "Pause" : "Play";
    }
    const go = to => { done = to; refused = ""; show(); };
    form.back.addEventListener("click", () => { stop(); go(Math.max(0, done - 1)); });
    form.step.addEventListener("click", () => { stop(); go(done + 1); });
    form.at.addEventListener("input", () => { stop(); go(Number(form.at.value)); });
    form.play.addEventListener("click", () => {
      if (timer) stop();
      else {
        if (last) done = 0;
        timer = setInterval(() => go(done + 1), 100);
      }
      show();
    });
    form.addEventListener("change", ({ target }) => {
      if (target === form.at || target === form.file) return;
      stop();
      go(target === form.zoom ? done : 0);
    });
    form.addEventListener("submit", event => event.preventDefault());

    async function take(file) {
      if (!file) return;
      const found = eventsOf(await file.text()), batch = Number(form.measured.value);
      if (!found) refused = `${file.name} is not a one-step-trace.json of chapter 6.`;
      else if (!found.some(e => e.pid === batch && e.tid)) {
        refused = `${file.name} has no step of ${batch} images.`;
      } else { yours = found; done = Infinity; refused = ""; }
      stop();
      show();
    }
    form.file.addEventListener("change", () => take(form.file.files[0]));
    box.addEventListener("dragover", event => event.preventDefault());
    box.addEventListener("drop", event => {
      event.preventDefault();
      take(event.dataTransfer.files[0]);
    });
    show();
  }

  document.addEventListener("DOMContentLoaded", () =>
    document.querySelectorAll(".step-player").forEach(player));
})();
