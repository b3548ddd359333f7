// Sets the colour theme before the first paint; a classic script in <head>, since a module would come too late and flash.
// The choice (auto, light, dark) is kept in localStorage; auto follows the system, also while the page is open.
(function () {
  "use strict";
  var dark = window.matchMedia("(prefers-color-scheme: dark)");
  function choice() {
    try { return localStorage.getItem("sluice.theme") || "auto"; } catch (error) { return "auto"; }
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
