// Elements from values. Text is always a text node: names and messages are written by strangers.

export function el(tag, attributes = {}, ...children) {
  return furnish(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return furnish(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function furnish(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else set(node, name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// A stranger's text: isolated, so that right-to-left marks in it cannot turn its surroundings around.
export function foreign(text) {
  return el("bdi", {}, String(text));
}

// Writing what is already there would make screen readers speak and lose a selection.
export function say(node, text) {
  if (node.textContent !== String(text)) node.textContent = String(text);
}

export function set(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? "" : String(value));
}

// Children for items, one each and in their order; a child whose item stays keeps its focus.
export function keyed(parent, items, key, create, update) {
  const nodes = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let at = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let child = nodes.get(name);
    nodes.delete(name);
    if (!child) {
      child = create(item);
      child.dataset.key = name;
    }
    update(child, item);
    if (child === at) at = at.nextElementSibling;
    else parent.insertBefore(child, at);
  }
  for (const child of nodes.values()) child.remove();
}

let lastId = 0;

export function select(label, options, value, onchange) {
  const id = `select-${(lastId += 1)}`;
  const choice = el("select", { id, change: () => onchange(choice.value) });
  for (const [name, text] of options) {
    const option = el("option", { value: name }, text);
    option.selected = name === value;
    choice.append(option);
  }
  return el("span", { class: "field" }, el("label", { for: id }, label), choice);
}
