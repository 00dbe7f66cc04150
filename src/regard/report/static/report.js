// Without scripts the filter stays hidden and every example is shown.
const form = document.querySelector(".filter"), examples = [...document.querySelectorAll("article")];
if (form) {
  const show = () => {
    for (const example of examples) {
      example.hidden = ["mark", "group"].some(k => form[k]?.value && form[k].value !== example.dataset[k]);
    }
    const left = examples.filter(e => !e.hidden).length;
    form.querySelector("output").textContent = left + " of " + examples.length + " shown";
  };
  form.hidden = false;
  form.addEventListener("change", show);
  form.addEventListener("submit", event => event.preventDefault());
  show();
}
