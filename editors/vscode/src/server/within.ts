// A limit on a wait.

/** What `work` gives; throws when it takes longer than `limitMs`. */
export async function within<Answer>(limitMs: number, work: Promise<Answer>): Promise<Answer> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => { reject(new Error(`it did not answer within ${limitMs / 1000} seconds`)); }, limitMs);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}
