// Texts and labels may be hostile. They reach the page as text nodes and attribute values alone:
// nothing here makes markup of a string.
const $ = (id) => document.getElementById(id);
const whole = (n) => n.toLocaleString("en");
const two = (n) => (n === null ? "–" : n.toFixed(2));
const many = (n, one, more = `${one}s`) => `${whole(n)} ${n === 1 ? one : more}`;

/** Make an element; strings become text nodes. */
function el(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** Text by a user, in its own direction. */
const foreign = (tag, text, props = {}) => el(tag, { dir: "auto", ...props }, text);

function cut(text, length) {
  if (text.length <= length) return text;
  const last = text.charCodeAt(length - 1);
  return text.slice(0, last >= 0xd800 && last < 0xdc00 ? length - 1 : length);
}
