// On a page that stands in place of another: it asks for that one each ten seconds, and makes way when it is there.
const AGAIN_MS = 10_000;

setInterval(async () => {
  try { if ((await fetch(location.href)).ok) location.replace(location.href); } catch { /* the console doesn't answer either */ }
}, AGAIN_MS);
