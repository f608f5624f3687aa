// Questions to the server of this page.

/** The answer as an object; null if nothing has changed. Throws an Error with a sentence for the user. */
export async function ask(path, parameters = {}) {
  let answer;
  try {
    answer = await fetch(`api/${path}?${new URLSearchParams(parameters)}`);
  } catch {
    throw new Error("kubectl dtj ui does not answer: it has ended, or this machine is offline. Start it again.");
  }
  if (answer.status === 204) return null;
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(found.error ?? `kubectl dtj ui answered with ${answer.status}`);
  return found;
}
