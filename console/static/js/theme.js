// Sets the colour theme before the first paint; a classic script in <head>, since a module would come too late and flash.
// The person's setting holds; a switch on a page is for this browser (localStorage) until settings are saved anew. auto follows the system.
(function () {
  "use strict";
  var dark = window.matchMedia("(prefers-color-scheme: dark)");
  var root = document.documentElement, data = root.dataset, ofPerson = data.themeSaved || "auto";
  try {
    // A session without saved settings has no moment of saving: then this browser's choices stand.
    if (data.savedAt && localStorage.getItem("sluice.settings") !== data.savedAt) {
      localStorage.setItem("sluice.settings", data.savedAt);
      localStorage.removeItem("sluice.theme");
      localStorage.removeItem("sluice.zone");
    }
  } catch (error) { /* private mode: the person's settings hold */ }
  function choice() {
    try { return localStorage.getItem("sluice.theme") || ofPerson; } catch (error) { return ofPerson; }
  }
  function apply() {
    var selected = choice();
    var theme = selected === "auto" ? (dark.matches ? "dark" : "light") : selected;
    document.documentElement.setAttribute("data-theme", theme);
    document.documentElement.setAttribute("data-theme-choice", selected);
    document.dispatchEvent(new CustomEvent("sluice:theme", { detail: theme }));
  }
  dark.addEventListener("change", apply);
  window.sluiceTheme = { choice: choice, set: function (value) {
    try { localStorage.setItem("sluice.theme", value); } catch (error) { /* private mode: the choice lasts this page */ }
    apply();
  } };
  apply();
})();
