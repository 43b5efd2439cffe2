// Tokens of a sample, coloured by one of their figures; all figures of a token under the pointer or the focus.
const CHUNK = 256;
const KINDS = {
  ratio: { label: "ratio trainer / engine", grade: (v) => grade(Math.log(v), [0.01, 0.1, Math.LN2]), worst: (v) => Math.abs(Math.log(v)) },
  advantage: { label: "advantage", grade: (v) => grade(v, [0.01, 0.5, 1.5]), worst: (v) => Math.abs(v) },
  entropy: { label: "entropy", grade: (v) => grade(v, [0.1, 0.7, 1.5]), worst: (v) => v },
  sampled: { label: "log-probability", grade: (v) => grade(v, [0.1, 0.7, 2.3]), worst: (v) => -v },
  versions: { label: "policy version", grade: null, worst: (v) => -v },
};

function grade(value, [small, middle, large]) {
  const size = Math.abs(value);
  if (size < small) return "";
  return (value > 0 ? "p" : "n") + (size < middle ? 1 : size < large ? 2 : 3);
}

function figure(name, value) {
  const box = document.createElement("span");
  const strong = document.createElement("b");
  strong.textContent = value;
  box.append(name + " ", strong);
  return box;
}

const shown = (value) => (value === null || value === undefined ? "–" : Number(value).toPrecision(4));

class Strip {
  constructor(section, data) {
    this.data = data;
    this.kinds = Object.keys(KINDS).filter((kind) => data[kind] && data[kind].some((v) => v !== null));
    this.controls = document.createElement("div");
    this.controls.className = "controls";
    this.panel = document.createElement("div");
    this.panel.className = "figures";
    this.panel.setAttribute("role", "status");
    this.strip = document.createElement("div");
    this.strip.className = "strip";
    this.newest = data.versions.reduce((most, version) => Math.max(most, version), 0);
    this.chunks = this.build();
    for (const kind of this.kinds) {
      const button = document.createElement("button");
      button.textContent = KINDS[kind].label;
      button.dataset.kind = kind;
      button.addEventListener("click", () => this.colour(kind));
      this.controls.append(button);
    }
    const worst = document.createElement("button");
    worst.textContent = "go to the worst token";
    worst.addEventListener("click", () => this.worst());
    this.controls.append(worst);
    section.append(this.controls, this.panel, this.strip);
    this.strip.addEventListener("pointerover", (event) => this.tell(event.target));
    this.strip.addEventListener("focusin", (event) => this.tell(event.target));
    this.strip.addEventListener("keydown", (event) => this.step(event));
    this.colour(this.kinds[0]);
    if (this.chunks.length) {
      this.fill(this.chunks[0]);
      this.chunks[0].children[0].tabIndex = 0;
    }
  }

  // Each chunk is one text until it comes near the window: a browser takes seconds for 32,000 elements.
  build() {
    const near = new IntersectionObserver((seen) => {
      for (const one of seen) if (one.isIntersecting) this.fill(one.target);
    }, { rootMargin: "100% 0px" });
    const chunks = [];
    for (let begin = 0; begin < this.data.pieces.length; begin += CHUNK) {
      const chunk = document.createElement("span");
      chunk.className = "chunk";
      chunk.textContent = this.data.pieces.slice(begin, begin + CHUNK).join("");
      chunk.dataset.begin = String(begin);
      chunks.push(chunk);
      near.observe(chunk);
    }
    this.strip.append(...chunks);
    return chunks;
  }

  fill(chunk) {
    if (chunk.dataset.filled) return;
    chunk.dataset.filled = "yes";
    const begin = Number(chunk.dataset.begin);
    chunk.replaceChildren(...this.data.pieces.slice(begin, begin + CHUNK).map((piece, inside) => {
      const span = document.createElement("span");
      span.textContent = piece;
      span.dataset.at = String(begin + inside);
      return span;
    }));
    this.paint(chunk);
  }

  colour(kind) {
    this.kind = kind;
    for (const chunk of this.chunks) if (chunk.dataset.filled) this.paint(chunk);
    for (const button of this.controls.children) button.setAttribute("aria-pressed", String(button.dataset.kind === kind));
  }

  paint(chunk) {
    const values = this.data[this.kind] || [];
    const of = KINDS[this.kind].grade || ((v) => (v < 0 ? "" : "n" + Math.min(3, 1 + this.newest - v)));
    for (const span of chunk.children) {
      const at = Number(span.dataset.at);
      const flags = this.data.flags ? this.data.flags[at] : 0;
      const value = values[at];
      const given = this.data.versions[at] < 0;
      const on = span === this.on ? " on" : "";
      span.className = "t " + (given ? "given " : "") + (flags > 1 ? "cut " : "") + (given || value === null || value === undefined ? "" : of(value)) + on;
    }
  }

  tell(target) {
    if (!target.dataset || target.dataset.at === undefined) return;
    const at = Number(target.dataset.at);
    const data = this.data;
    const flags = data.flags ? data.flags[at] : 0;
    const parts = [figure("token", at), figure("id", data.ids[at]), figure("policy version", data.versions[at] < 0 ? "given" : data.versions[at])];
    if (data.versions[at] >= 0) parts.push(figure("sampled log-prob", shown(data.sampled[at])));
    if (data.trained && data.versions[at] >= 0) {
      parts.push(figure("trained log-prob", shown(data.trained[at])), figure("ratio", shown(data.ratio[at])), figure("advantage", shown(data.advantage[at])), figure("entropy", shown(data.entropy[at])));
      parts.push(figure("in the loss", flags & 1 ? (flags & 4 ? "rejected" : flags & 2 ? "clipped" : "yes") : "no"));
    }
    this.panel.replaceChildren(...parts);
    if (this.on) this.on.classList.remove("on");
    this.on = target;
    target.classList.add("on");
  }

  go(at) {
    const chunk = this.chunks[Math.floor(at / CHUNK)];
    if (!chunk) return;
    this.fill(chunk);
    const span = chunk.children[at % CHUNK];
    if (!span) return;
    span.tabIndex = 0;
    span.scrollIntoView({ block: "center" });
    span.focus({ preventScroll: true });
    this.tell(span);
  }

  step(event) {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move || event.target.dataset.at === undefined) return;
    event.preventDefault();
    this.go(Number(event.target.dataset.at) + move);
  }

  worst() {
    const values = this.data[this.kind];
    let found = -1;
    let most = -Infinity;
    values.forEach((value, at) => {
      if (value === null || this.data.versions[at] < 0) return;
      const size = KINDS[this.kind].worst(value);
      if (size > most) [most, found] = [size, at];
    });
    this.go(found);
  }
}

for (const section of document.querySelectorAll("[data-tokens]")) {
  const answer = await fetch(section.dataset.tokens);
  if (answer.ok) new Strip(section, await answer.json());
  else section.append("What the trainer computed of its tokens is not recorded.");
}
