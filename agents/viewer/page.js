"use strict";
const $ = (id) => document.getElementById(id);
const el = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
};

async function unpack(id) {
  const bytes = Uint8Array.from(atob($(id).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const ROW = 44, KEPT = 24, WIDEST = 24, TURNS = 400;
const PAINTS = [["draft", "drafts"], ["logprob", "probability"], ["level", "level"], ["mask", "mask"], ["none", "none"]];
let head, columns, allTexts = null, shown = [], chosen = -1, paint = "draft", asTokens = false, opened = 0;
const chunks = new Map();

async function episode(number) {
  const chunk = Math.floor(number / head.chunk);
  if (!chunks.has(chunk)) {
    chunks.set(chunk, unpack(`chunk-${chunk}`));
    if (chunks.size > KEPT) chunks.delete(chunks.keys().next().value);
  }
  return (await chunks.get(chunk))[number % head.chunk];
}

/* ---- token text: bytes are joined before decoding, because a character may span tokens ---- */
function texts(ids) {
  const decoder = new TextDecoder();
  return ids.map((id, index) => {
    const raw = head.tokens[id];
    if (raw === undefined) return decoder.decode() + `⟨${id}⟩`;
    const bytes = Uint8Array.from(raw, (c) => c.charCodeAt(0));
    return decoder.decode(bytes, { stream: index + 1 < ids.length });
  });
}
const isSpecial = (text) => /^<[|/]?[^<>]{1,40}>$|^⟨\d+⟩$/.test(text);

function tokens(ids, describe) {
  const parts = document.createDocumentFragment();
  texts(ids).forEach((text, index) => {
    const { marks, title, probability } = describe(index);
    const node = el("span", { class: `tok ${marks}${isSpecial(text) ? " special" : ""}`, title }, text);
    if (probability !== null) node.style.setProperty("--p", (1 - probability).toFixed(3));
    parts.append(node);
  });
  return parts;
}

function sampled(turn) {
  return (index) => {
    const logprob = turn.logprobs[index], level = turn.levels ? turn.levels[index] : "A", accepted = turn.accepted[index] === "1";
    const probability = logprob === null || logprob === undefined ? null : Math.exp(Math.min(0, logprob));
    return {
      marks: `m l${level}${accepted ? " a" : ""}`,
      title: `token ${turn.ids[index]}, p ${probability === null ? "unknown" : probability.toFixed(3)}, level ${level}` +
        (turn.accepted ? (accepted ? ", drafted and accepted" : ", sampled") : ""),
      probability,
    };
  };
}
const counted = (count, name) => `${count} ${name}${count === 1 ? "" : "s"}`;
const context = (ids) => (index) => ({ marks: "", title: `token ${ids[index]}, prompt`, probability: null });

/* ---- the list ---- */
function row(number) {
  const c = columns, pace = c.steps[number] ? `, ${(c.tokens[number] / c.steps[number]).toFixed(1)} tokens per forward pass` : "";
  const where = c.step[number] === null ? `#${number}` : `step ${c.step[number]}`;
  const other = partner(number), score = c.reward[number].toFixed(2) + (other === undefined ? "" : ` → ${c.reward[other].toFixed(2)}`);
  return el("div", {
      class: "row", role: "option", id: `row-${number}`, "aria-selected": String(number === chosen), "data-episode": number,
      onclick: () => open(number),
    },
    el("b", {}, c.task[number] || c.env[number]),
    el("span", { class: `score ${c.outcome[number].replace(" ", "-")}` }, score),
    el("small", {}, `${where}, ${counted(c.turns[number], "turn")}, ${counted(c.tokens[number], "token")}${pace}${c.cut[number] ? `, ${c.cut[number]} cut` : ""}`));
}

function draw() {
  const list = $("list"), first = Math.max(0, Math.floor(list.scrollTop / ROW) - 5);
  const last = Math.min(shown.length, first + Math.ceil(list.clientHeight / ROW) + 11);
  $("tall").style.height = `${shown.length * ROW}px`;
  $("rows").style.top = `${first * ROW}px`;
  $("rows").replaceChildren(...shown.slice(first, last).map(row));
  const there = shown.slice(first, last).includes(chosen);
  if (there) list.setAttribute("aria-activedescendant", `row-${chosen}`); else list.removeAttribute("aria-activedescendant");
}

/* Unpack the text of all episodes for the first text search. */
async function loadTexts() {
  $("summary").textContent = "loading texts …";
  allTexts = [];
  for (let chunk = 0; chunk * head.chunk < columns.reward.length; chunk++)
    for (const data of await unpack(`chunk-${chunk}`)) allTexts.push(data.messages.map(plain).join("\n").toLowerCase());
}

async function filter() {
  if ($("texts").checked && !allTexts) await loadTexts();
  const c = columns, words = $("find").value.toLowerCase().split(/\s+/).filter(Boolean);
  const outcome = $("outcome").value, stop = $("stop").value;
  const from = $("from").value === "" ? -Infinity : +$("from").value, to = $("to").value === "" ? Infinity : +$("to").value;
  shown = [];
  for (let n = 0; n < c.reward.length; n++) {
    if (c.run[n] && partner(n) !== undefined) continue; // shown next to the first run's episode
    if (outcome && c.outcome[n] !== outcome || stop && c.stop[n] !== stop) continue;
    if (c.step[n] !== null && (c.step[n] < from || c.step[n] > to)) continue;
    if (words.length) {
      const text = `${c.task[n]} ${c.env[n]} ${c.source[n]} ${c.stop[n]}`.toLowerCase() + ($("texts").checked ? allTexts[n] ?? "" : "");
      if (!words.every((word) => text.includes(word))) continue;
    }
    shown.push(n);
  }
  const sort = $("sort").value, name = sort.replace("-", ""), sign = sort.startsWith("-") ? -1 : 1;
  const value = name === "change" ? (n) => partner(n) === undefined ? 0 : Math.abs(c.reward[partner(n)] - c.reward[n]) : name === "pace" ? (n) => c.steps[n] ? c.tokens[n] / c.steps[n] : 0 : (n) => c[name][n];
  if (name) shown.sort((a, b) => sign * (value(a) - value(b)) || a - b);
  const sum = (of) => shown.reduce((total, n) => total + of(n), 0);
  const steps = sum((n) => c.steps[n]), scored = shown.filter((n) => c.outcome[n] === "solved" || c.outcome[n] === "not solved");
  $("summary").textContent = `${shown.length.toLocaleString("en")} of ${c.reward.length.toLocaleString("en")} episodes` + (!shown.length ? "" :
    `, reward ${(scored.reduce((total, n) => total + c.reward[n], 0) / Math.max(1, scored.length)).toFixed(3)}` +
    (steps ? `, ${(sum((n) => c.tokens[n]) / steps).toFixed(2)} tokens per forward pass` : ""));
  $("list").scrollTop = 0;
  draw();
}

/* ---- one episode ---- */
async function open(number) {
  chosen = number;
  listing(false);
  const index = shown.indexOf(number), list = $("list"), top = index * ROW;
  if (index >= 0 && (top < list.scrollTop || top + ROW > list.scrollTop + list.clientHeight)) list.scrollTop = top - list.clientHeight / 2;
  draw();
  history.replaceState(null, "", `#episode=${number}`);
  const request = ++opened, other = partner(number);
  const both = await Promise.all([number, other].filter((one) => one !== undefined).map(async (one) => [one, await episode(one)]));
  // A later click may have finished first.
  if (request === opened) show(both);
}

/* Two runs: pair episodes with the same task, sample and occurrence. */
let partners = new Map();
const partner = (number) => partners.get(number);
function pair() {
  const seen = new Map(), first = new Map(), c = columns;
  partners = new Map();
  for (let n = 0; n < c.reward.length; n++) {
    const key = JSON.stringify([c.env[n], c.task[n] || c.index[n], c.session[n]]), count = seen.get(c.run[n] + key) ?? 0, occurrence = `${key}${count}`;
    seen.set(c.run[n] + key, count + 1);
    if (!c.run[n]) first.set(occurrence, n);
    else if (first.has(occurrence)) { partners.set(n, first.get(occurrence)); partners.set(first.get(occurrence), n); }
  }
}

const fact = (name, value) => value === null || value === "" || value === undefined ? [] : [el("span", {}, `${name} `, el("b", {}, String(value))), " "];

function show(both) {
  const buttons = el("div", { class: "tools", role: "group", "aria-label": "Colours" }, el("span", {}, "Colour tokens by"),
    ...PAINTS.map(([name, label]) => el("button", { "aria-pressed": String(paint === name), "data-paint": name, onclick: () => colour(name) }, label)),
    el("button", { "aria-pressed": String(asTokens), id: "as-tokens", onclick: () => { asTokens = !asTokens; show(both); } }, "raw tokens"));
  const [number] = both[0];
  $("detail").replaceChildren(el("h2", {}, columns.task[number] || columns.env[number]), buttons, legend(),
    el("div", { class: `paint-${paint}${both.length > 1 ? " both" : ""}`, id: "dialogue" }, ...both.map(([one, data]) => renderEpisode(one, data))));
  $("detail").scrollTop = 0;
}

function renderEpisode(number, data) {
  const c = columns, at = (name) => c[name][number];
  const facts = el("p", { class: "facts" },
    ...fact("environment", at("env")), ...fact("step", at("step")), ...fact("sample", at("session")), ...fact("reward", at("reward")),
    ...fact("outcome", at("outcome")), ...fact("ended by", at("stop")), ...fact("tool calls", at("tools")), ...fact("tokens", at("tokens")),
    ...fact("accepted drafts", at("accepted")), ...fact("forward passes", at("steps") || null), ...fact("answer", data.answer), ...fact("seed", data.seed),
    ...fact("failure", data.failure), ...fact("ungraded", data.ungraded.join(", ")));
  const body = asTokens ? [stream(data)] : bubbles(data);
  const rewards = Object.entries(data.rewards);
  const table = rewards.length ? [el("h3", {}, "Reward components"), el("table", { class: "rewards" }, el("tbody", {},
    ...rewards.map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value === null ? "none" : String(+value.toFixed(4)))))))] : [];
  const heading = head.runs.length > 1 ? [el("h3", {}, head.runs[at("run")])] : [];
  return el("section", { class: "episode" }, ...heading, facts, ...body, ...table);
}

function colour(name) {
  paint = name;
  $("dialogue").className = $("dialogue").className.replace(/paint-\w+/, `paint-${name}`);
  for (const button of document.querySelectorAll("[data-paint]")) button.setAttribute("aria-pressed", String(button.dataset.paint === name));
  document.querySelector(".legend").replaceWith(legend());
}

function legend() {
  const keys = { draft: [["accept", "drafted and accepted"]], mask: [["accept", "sampled by the policy (trained on)"]], logprob: [["lowest", "low probability under the policy"]],
    level: [["card", "A: exact"], ["b", "B: exact replay, not trained on"], ["c", "C: exact in the marginal distribution"], ["d", "D: biased"]], none: [] }[paint];
  return el("div", { class: "legend" }, ...keys.map(([colour, text]) => {
    const box = el("i"); box.style.background = `var(--${colour})`; return el("span", {}, box, text); }));
}

function stream(data) {
  const node = el("div", { class: "stream bubble" });
  for (const turn of data.turns) node.append(tokens(turn.added, context(turn.added)), tokens(turn.ids, sampled(turn)));
  return node;
}

function bubbles(data) {
  let next = 0;
  return data.messages.map((message, index) => {
    const turn = index >= data.opening && message.role === "assistant" ? data.turns[next++] : undefined;
    const who = el("div", { class: "who" }, el("span", {}, message.role + (message.name ? ` ${message.name}` : "")));
    const node = el("section", { class: `bubble ${message.role}` }, who);
    if (!turn) { node.append(el("div", { class: "text" }, plain(message))); return node; }
    const accepted = [...turn.accepted].filter((flag) => flag === "1").length;
    who.append(el("span", {}, `${counted(turn.ids.length, "token")}, ${accepted} accepted of ${turn.drafted} drafted, ${turn.steps} forward pass${turn.steps === 1 ? "" : "es"}, ` +
      `${turn.cached} of ${turn.prompt} prompt tokens cached, reward ${turn.reward}, ended by ${turn.finish}`));
    node.append(el("div", { class: "text code" }, tokens(turn.ids, sampled(turn))));
    const known = head.states[turn.state];
    if (known) who.append(el("button", { class: "open-tree", "aria-expanded": "false", onclick: (event) => unfold(event.target, node, known) }, `tree of ${counted(known.length / 2, "turn")}`));
    return node;
  });
}

function plain(message) {
  if (typeof message.content === "string" && message.content) return message.content;
  return message.tool_calls ? JSON.stringify(message.tool_calls, null, 1) : "";
}

/* ---- the prefix tree of a dialogue state ---- */
async function unfold(button, node, known) {
  const old = node.querySelector("details.tree");
  if (old) { old.remove(); button.setAttribute("aria-expanded", "false"); return; }
  button.setAttribute("aria-expanded", "true");
  const root = { count: 0, next: new Map() };
  for (let n = 0; n < Math.min(known.length, 2 * TURNS); n += 2) {
    const turn = (await episode(known[n])).turns[known[n + 1]];
    let at = root; at.count++;
    for (const id of turn.ids) {
      if (!at.next.has(id)) at.next.set(id, { count: 0, next: new Map() });
      at = at.next.get(id); at.count++;
    }
  }
  const left = known.length / 2 - root.count;
  node.append(el("details", { class: "tree", open: "" }, el("summary", {}, `${counted(root.count, "turn")} from this state` + (left > 0 ? `, ${left} more not shown` : "")), ...children(root, [])));
}

function children(node, path) {
  const sorted = [...node.next].sort((a, b) => b[1].count - a[1].count);
  const made = sorted.slice(0, WIDEST).map(([id, child]) => branch(id, child, node.count, path));
  if (sorted.length > WIDEST) made.push(el("div", { class: "leaf" }, `${sorted.length - WIDEST} more`));
  return made;
}

function branch(id, node, before, path) {
  const ids = [id];
  while (node.next.size === 1 && [...node.next.values()][0].count === node.count) { const [[only, child]] = node.next; ids.push(only); node = child; }
  const words = texts(ids).join(""), share = el("span", { class: "count" }, `${node.count}× ${Math.round(100 * node.count / before)} %`);
  if (!node.next.size) return el("div", { class: "leaf" }, share, words);
  const fold = el("details", { class: "branch" }, el("summary", {}, share, words));
  fold.addEventListener("toggle", () => { if (fold.open && fold.children.length === 1) fold.append(...children(node, ids)); });
  if (path.length === 0) { fold.open = true; fold.append(...children(node, ids)); }
  return fold;
}

/* ---- tabs, drawer, keyboard ---- */
function tab(name) {
  for (const id of ["episodes", "curves"]) {
    $(id).hidden = id !== name;
    $(`tab-${id}`).setAttribute("aria-selected", String(id === name));
    $(`tab-${id}`).tabIndex = id === name ? 0 : -1;
  }
  if (name === "episodes") draw();
}

/* On a narrow screen the list is a drawer over the episode. */
function listing(open) {
  document.body.classList.toggle("listing", open);
  $("drawer").setAttribute("aria-expanded", String(open));
  if (open) draw();
}

function move(by) {
  const index = shown.indexOf(chosen), target = index < 0 ? 0 : Math.max(0, Math.min(shown.length - 1, index + by));
  if (shown.length) open(shown[target]);
}

function keys(event) {
  const typing = /INPUT|SELECT|TEXTAREA/.test(event.target.tagName);
  if (event.key === "Escape" && typing) { event.target.blur(); $("list").focus(); return; }
  if (event.target.getAttribute("role") === "tab" && /^Arrow(Left|Right)$/.test(event.key)) {
    const other = event.target.id === "tab-episodes" ? "curves" : "episodes";
    tab(other); $(`tab-${other}`).focus(); event.preventDefault(); return;
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey || $("episodes").hidden) return;
  const page = Math.max(1, Math.floor($("list").clientHeight / ROW) - 1);
  const onTab = event.target.getAttribute("role") === "tab", at = document.activeElement;
  const inList = at === $("list") || at === document.body || onTab;
  const actions = { "/": () => $("find").focus(), c: () => press(PAINTS[(PAINTS.findIndex(([name]) => name === paint) + 1) % PAINTS.length][0]), t: () => $("as-tokens")?.click(),
    j: () => move(1), k: () => move(-1) };
  if (inList) Object.assign(actions, { ArrowDown: () => move(1), ArrowUp: () => move(-1), PageDown: () => move(page), PageUp: () => move(-page),
    Home: () => move(-shown.length), End: () => move(shown.length) });
  if (inList && !onTab) actions.Enter = () => $("detail").focus();
  if (actions[event.key]) { actions[event.key](); event.preventDefault(); }
}
async function openLinked() {
  const asked = /^#episode[-=](\d+)$/.exec(location.hash);
  await open(asked && +asked[1] < columns.reward.length ? +asked[1] : 0);
}
const press = (name) => document.querySelector(`[data-paint=${name}]`)?.click();

async function load() {
  head = await unpack("head");
  columns = head.columns;
  pair();
  allTexts = null;
  chunks.clear();
  for (const id of ["outcome", "stop"]) for (const value of [...new Set(columns[id])].sort())
    if (![...$(id).options].some((option) => option.value === value)) $(id).append(el("option", { value }, value));
}

async function start() {
  await load();
  const steps = columns.step.filter((step) => step !== null);
  let low = Infinity, high = -Infinity;
  for (const step of steps) { low = Math.min(low, step); high = Math.max(high, step); }
  if (steps.length) { $("from").placeholder = low; $("to").placeholder = high; } else $("from").closest("label").hidden = true;
  $("no-curves").hidden = document.querySelector(".charts").children.length > 0;
  for (const id of ["find", "texts", "outcome", "stop", "from", "to", "sort"]) $(id).addEventListener("input", filter);
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  $("list").addEventListener("scroll", draw, { passive: true });
  $("drawer").addEventListener("click", () => listing(!document.body.classList.contains("listing")));
  addEventListener("resize", draw);
  addEventListener("keydown", keys);
  for (const id of ["episodes", "curves"]) $(`tab-${id}`).addEventListener("click", () => tab(id));
  await filter();
  addEventListener("hashchange", openLinked);
  await openLinked();
  if (typeof follow === "function") follow(""); // a served page loads new episodes at once
  document.documentElement.dataset.ready = "true";
}
start();
