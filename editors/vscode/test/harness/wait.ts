// Waiting for a state, under a limit.

const EVERY_MS = 50;

/** Resolves with the first answer of `check` that is neither false nor nothing; throws what was waited for at the limit. */
export async function until<Answer>(
  what: string, check: () => Answer | Promise<Answer>, limitMs = 30_000,
): Promise<Exclude<Answer, false | null | undefined>> {
  const end = Date.now() + limitMs;
  for (;;) {
    const answer = await check();
    if (answer !== false && answer !== undefined && answer !== null) {
      return answer as Exclude<Answer, false | null | undefined>;
    }
    if (Date.now() > end) throw new Error(`waited ${limitMs / 1000} s for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
  }
}
