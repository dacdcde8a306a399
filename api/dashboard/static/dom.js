// Small helpers for the document: nothing is written that is there already, and lists keep their nodes.

/** Return the element of that id; the page has all that are asked for. */
export function byId(id) {
  return document.getElementById(id);
}

/** Return a new element with a class, or none, and with children: elements or texts. */
export function make(tag, className = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

/** Set an element's text, if it is another one. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Set an attribute, if it is another one; null removes it. */
export function setAttribute(element, name, value) {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/** Hide an element, or show it. */
export function setHidden(element, hidden) {
  if (element.hidden !== hidden) element.hidden = hidden;
}

/**
 * Let `parent` have one child for each item, in their order: those that there are stay, by the item's key, so that the
 * focus stays too. `create` makes a child for an item, and `update` brings one up to date.
 */
export function keepList(parent, items, key, create, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let child = known.get(name);
    known.delete(name);
    if (!child) {
      child = create(item);
      child.dataset.key = name;
    }
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
    update(child, item);
  }
  for (const child of known.values()) child.remove();
}
