// The scheduler of tools/step_schedule.py, which a test holds equal to this one, and the
// four numbers of a timeline. Microseconds; a span is [name, lane, start, end] of one
// operator; lane 0 is Python, lane k + 1 is device k.
const isCommunication = name => /^(Copy|Sum|KVStore|_npi_add$)/.test(name);

// The spans of a step of `batch` images on n devices, in the order of issue. Python
// issues one operator after the other. A device computes one at a time: of those whose
// inputs are there, the one that has waited longest.
function schedule(c, n, batch, way) {
  const ops = [], range = count => [...Array(count).keys()];
  let python = 0;
  function issue(name, lane, time, inputs, queue = 0) {
    python += c.issue[name.split(",")[0]] ?? c.issue.other;
    ops.push({ name, lane, time, inputs, queue: queue || lane, issued: python });
    return ops.length - 1;
  }
  const link = bytes => c.latency + c.per_byte * bytes;

  const images = range(n).map(k => Math.floor(batch / n) + (k < batch % n ? 1 : 0));
  const last = range(n).map(k =>
    k ? [issue("Copy images", 1, link(c.image * images[k]), [])] : []);
  const upwards = range(c.layers.length), downwards = [...upwards].reverse();
  const ready = c.layers.map(() => []); // a layer's gradients on each device
  for (const [name, column, order] of [["forward", 2, upwards], ["backward", 3, downwards]]) {
    for (const k of range(n)) {
      for (const i of order) {
        const [fixed, perImage] = c.layers[i][column];
        const time = fixed + perImage * images[k];
        last[k] = [issue(`${name}, ${c.layers[i][0]}`, k + 1, time, last[k])];
        ready[i][k] = last[k];
      }
    }
  }
  const sum = sizes => sizes.reduce((a, b) => a + b, 0);
  const sizes = c.layers.flatMap(([, arrays]) => arrays);
  const groups = way === "one bucket" ? [[sum(sizes), last]]
    : way === "overlapped" ? downwards.map(i => [sum(c.layers[i][1]), ready[i]])
    : sizes.map(size => [size, last]);
  const own = way === "overlapped" ? n : 0; // queues of their own for communication
  const summed = groups.map(([size, inputs]) => {
    let total = inputs[0];
    for (const k of range(n).slice(1)) {
      const to = issue("Copy to device 0", k + 1, link(size), inputs[k], own + k + 1);
      total = [issue("Sum", 1, link(size), [...total, to], own + 1)];
    }
    return [total, ...range(n).slice(1).map(() =>
      [issue("Copy from device 0", 1, link(size), total, own + 1)])];
  });
  for (const k of range(n)) {
    groups.forEach(([size], g) => issue("update", k + 1, c.update * size, summed[g][k]));
  }

  const free = Array(2 * n + 1).fill(0), ends = {};
  const spans = [["Python", 0, 0, python], ...ops];
  for (let done = 0; done < ops.length; done++) {
    let chosen = null;
    ops.forEach((op, i) => {
      if (i in ends || !op.inputs.every(j => j in ends)) return;
      const came = Math.max(op.issued, ...op.inputs.map(j => ends[j]));
      const start = Math.max(came, free[op.queue]);
      if (!chosen || start < chosen.start
          || (start === chosen.start && came < chosen.came)) {
        chosen = { start, came, i };
      }
    });
    const { start, i } = chosen, { name, lane, time, queue } = ops[i];
    free[queue] = ends[i] = start + time;
    spans[i + 1] = [name, lane, start, ends[i]];
  }
  return spans;
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
