// The pages hold their formulas as \( ... \) and \[ ... \]; KaTeX draws them once the page is there.
document.addEventListener("DOMContentLoaded", () => {
  renderMathInElement(document.body, {
    delimiters: [
      { left: "\\(", right: "\\)", display: false },
      { left: "\\[", right: "\\]", display: true },
    ],
    throwOnError: true,
    errorCallback: (message) => document.body.setAttribute("data-formula-error", message),
  });
  document.body.setAttribute("data-formulas", "drawn");
});
