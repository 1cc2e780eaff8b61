selector => {
  const parse = (text) => text.match(/[\d.]+/g).map(Number);
  const linear = (v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = (c) => [.2126, .7152, .0722].reduce((sum, weight, i) => sum + weight * linear(c[i] / 255), 0);
  const behind = (node) => parse(getComputedStyle(node).backgroundColor);
  const node = document.querySelector(selector);
  let back = node;
  while (behind(back)[3] === 0) back = back.parentElement;
  const both = [light(parse(getComputedStyle(node).color)), light(behind(back))];
  return (Math.max(...both) + .05) / (Math.min(...both) + .05);
}
