// Fills the choice of versions from versions.json, next to the folders of all versions.
addEventListener("DOMContentLoaded", async () => {
  const choice = document.getElementById("version");
  if (!choice || location.protocol === "file:") return;
  const root = new URL(choice.dataset.root || "./", location.href);
  const answer = await fetch(new URL("../versions.json", root));
  if (!answer.ok) return;
  const versions = await answer.json();
  choice.replaceChildren(...versions.map((name) => new Option(name, name, false, name === choice.dataset.here)));
  choice.addEventListener("change", () => { location.href = new URL(`../${choice.value}/`, root); });
});
