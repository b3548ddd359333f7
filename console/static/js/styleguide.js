// Paints the swatches: a token's colour can't stand in the page's markup, where the CSP allows no style.
import { all } from "./dom.js";

for (const swatch of all("[data-token]")) swatch.style.background = `var(${swatch.dataset.token})`;
