"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const PER_PAGE = 12;
let page = 0;

// Everything that a row says becomes text, never markup.
function made(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function drawn(tag, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

const shown = (value) => (value === null || value === undefined ? "–" : String(value));

for (const row of data.rows) {
  row.text = [row.id, ...row.messages.map((one) => one[1])].join("\n").toLowerCase();
}
for (const name of ["step", "track"]) {
  for (const value of new Set(data.rows.map((row) => String(row[name])))) byId(name).append(made("option", "", value));
}

function chosen() {
  const search = byId("search").value.toLowerCase();
  const step = byId("step").value;
  const track = byId("track").value;
  const sort = byId("sort").value;
  const rows = data.rows.filter((row) => (!search || row.text.includes(search))
    && (!step || String(row.step) === step) && (!track || row.track === track));
  const rank = (row) => (row[sort] === null ? -Infinity : sort === "advantage" ? Math.abs(row[sort]) : row[sort]);
  return sort ? rows.sort((one, other) => rank(other) - rank(one)) : rows;
}

function tokensOf(row) {
  const box = made("div", "tokens");
  const column = byId("colour").value;
  const values = row.tokens.map((one) => Math.abs(column ? one[column] ?? 0 : 0));
  const largest = values.reduce((most, one) => Math.max(most, one), 0);
  row.tokens.forEach((one, place) => {
    const span = made("span", one[1] ? "" : "heard", one[0]);
    if (one[1] && largest) {
      const share = (0.6 * values[place] / largest).toFixed(3);
      const hue = column === "3" ? "217,119,6" : one[2] < 0 ? "220,38,38" : "22,163,74";
      span.style.background = `rgba(${hue},${share})`;
    }
    span.title = one[1] ? `advantage ${shown(one[2])}, |Δlogp| ${shown(one[3])}` : "not trained: said by the environment";
    box.append(span);
  });
  return box;
}

function rewardsOf(row) {
  const points = data.history[row.uid] || [];
  const steps = points.map((one) => one[0]);
  const rewards = points.map((one) => one[1]);
  const [first, last] = [Math.min(...steps), Math.max(...steps)];
  const [low, high] = [Math.min(...rewards), Math.max(...rewards)];
  const x = (step) => 40 + (last > first ? 340 * (step - first) / (last - first) : 170);
  const y = (reward) => 80 - (high > low ? 60 * (reward - low) / (high - low) : 30);
  const chart = drawn("svg", {viewBox: "0 0 400 110", role: "img", "aria-label": "rewards of this prompt over the run"});
  chart.append(drawn("line", {class: "grid", x1: 40, x2: 390, y1: 80, y2: 80}));
  for (const [step, reward] of points) {
    chart.append(drawn("circle", {cx: x(step), cy: y(reward), r: 3.5, class: step === row.step ? "now" : ""}));
  }
  chart.append(drawn("text", {x: 2, y: y(high) + 4}, shown(high)));
  if (high > low) chart.append(drawn("text", {x: 2, y: y(low) + 4}, shown(low)));
  chart.append(drawn("text", {x: 40, y: 102}, first === last ? `this prompt in step ${first}`
    : `rewards of this prompt, steps ${first} to ${last}`));
  return chart;
}

function detailsOf(row) {
  const box = made("div");
  const facts = made("dl", "facts");
  for (const [name, value] of row.facts) facts.append(made("dt", "", name), made("dd", "", value));
  box.append(tokensOf(row), facts);
  if (data.history[row.uid]) box.append(rewardsOf(row));
  return box;
}

function cardOf(row) {
  const card = made("article");
  const head = made("header");
  head.append(made("b", "", `step ${row.step}`), made("span", "", `reward ${shown(row.reward)}`),
    made("span", "", `advantage ${shown(row.advantage)}`), made("span", "", `|Δlogp| ${shown(row.delta)}`),
    made("span", "", `${row.length} actions, ${shown(row.end)}`), made("span", "mono", `${row.track} ${row.id}`));
  card.append(head);
  for (const [role, text, reward] of row.messages) {
    const line = made("div", "message");
    line.append(made("b", "", reward ? `${role} (${reward})` : role), made("div", "", text));
    card.append(line);
  }
  if (row.picture) {
    const picture = made("img");
    picture.src = row.picture;
    picture.alt = "what was made";
    card.append(picture);
  }
  const more = made("details");
  more.append(made("summary", "", "tokens, facts and the prompt's rewards"));
  more.addEventListener("toggle", () => {
    if (more.open && more.children.length === 1) more.append(detailsOf(row));
  });
  card.append(more);
  return card;
}

function show() {
  const rows = chosen();
  const pages = Math.max(1, Math.ceil(rows.length / PER_PAGE));
  page = Math.min(Math.max(0, page), pages - 1);
  const open = new Set([...document.querySelectorAll("article details[open]")].map((one) => one.parentElement.dataset.place));
  byId("where").textContent = `${rows.length} rows, page ${page + 1} of ${pages}`;
  byId("back").disabled = page === 0;
  byId("on").disabled = page === pages - 1;
  byId("rows").replaceChildren(...rows.slice(page * PER_PAGE, (page + 1) * PER_PAGE).map((row) => {
    const card = cardOf(row);
    card.dataset.place = String(data.rows.indexOf(row));
    card.querySelector("details").open = open.has(card.dataset.place);
    return card;
  }));
}

byId("choice").addEventListener("input", (event) => { if (event.target.id !== "colour") page = 0; show(); });
byId("choice").addEventListener("submit", (event) => event.preventDefault());
byId("back").addEventListener("click", () => { page -= 1; show(); });
byId("on").addEventListener("click", () => { page += 1; show(); });
show();
