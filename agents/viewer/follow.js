/* A served page polls the run and replaces its data; the open episode and the filters stay. */
async function follow(last) {
  const now = await fetch("stamp").then((answer) => answer.text(), () => last);
  if (now !== last) {
    const page = new DOMParser().parseFromString(await (await fetch("/")).text(), "text/html");
    for (const old of document.querySelectorAll("script[type='application/gzip+base64']")) old.remove();
    document.body.append(...page.querySelectorAll("script[type='application/gzip+base64']"));
    document.querySelector(".charts").replaceWith(page.querySelector(".charts"));
    $("no-curves").hidden = document.querySelector(".charts").children.length > 0;
    const scroll = $("list").scrollTop;
    await load();
    await filter();
    $("list").scrollTop = scroll;
  }
  setTimeout(follow, 2000, now);
}
