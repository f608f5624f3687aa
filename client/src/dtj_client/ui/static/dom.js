// Elements are made here, and only here. Every text becomes a text node, so it cannot become HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. Properties that begin with "on" are listeners; null and false leave an attribute out. */
export function h(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** An SVG element. */
export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false && value !== undefined)
      element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Change a text only if it differs, so that a selection and the layout stay. */
export function setText(element, text) {
  const wanted = String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

/**
 * Make the children of `parent` those of `items`, in this order. An element of the same key is kept, with its focus.
 * `create(item)` returns an element that has a method `show(item)`.
 */
export function keyed(parent, items, keyOf, create) {
  const known = parent.byKey ?? new Map();
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const keys = new Set(items.map(keyOf));
  for (const [key, element] of known) if (!keys.has(key)) element.remove();
  parent.byKey = new Map();
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    const element = known.get(key) ?? create(item);
    element.show(item);
    parent.byKey.set(key, element);
    if (element === place) place = place.nextSibling;
    else parent.insertBefore(element, place);
  }
  // An element that was moved has lost the focus.
  if (focused?.isConnected && focused !== document.activeElement) focused.focus({ preventScroll: true });
}
