// Sets the colour theme before the first paint; a classic script in <head>, since a module would come too late and flash.
// The person's setting holds; a switch on a page is for this browser (localStorage) until settings are saved anew. auto follows the system.
(function () {
  "use strict";
  var dark = window.matchMedia("(prefers-color-scheme: dark)");
  var root = document.documentElement, kept = root.dataset, ofPerson = kept.themeKept || "auto";
  try {
    // A session without saved settings has no moment of saving: then this browser's choices stand.
    if (kept.keptAt && localStorage.getItem("sluice.settings") !== kept.keptAt) {
      localStorage.setItem("sluice.settings", kept.keptAt);
      localStorage.removeItem("sluice.theme");
      localStorage.removeItem("sluice.zone");
    }
  } catch (error) { /* private mode: the person's settings hold */ }
  function choice() {
    try { return localStorage.getItem("sluice.theme") || ofPerson; } catch (error) { return ofPerson; }
  }
  function apply() {
    var wanted = choice();
    var theme = wanted === "auto" ? (dark.matches ? "dark" : "light") : wanted;
    document.documentElement.setAttribute("data-theme", theme);
    document.documentElement.setAttribute("data-theme-choice", wanted);
    document.dispatchEvent(new CustomEvent("sluice:theme", { detail: theme }));
  }
  dark.addEventListener("change", apply);
  window.sluiceTheme = { choice: choice, set: function (wanted) {
    try { localStorage.setItem("sluice.theme", wanted); } catch (error) { /* private mode: the choice lasts this page */ }
    apply();
  } };
  apply();
})();
