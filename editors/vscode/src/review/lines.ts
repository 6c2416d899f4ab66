// Where the eyes belong in a candidate: its first kernel that differs. Knows nothing of VS Code.

const KERNEL = /^[^/]*\b__global__\b/;

/**
 * The line of the kernel that holds the first difference to `before`, else of the first kernel, else the first line.
 *
 * A text that is new as a whole leads to its last kernel, because helpers stand above.
 */
export function kernelLine(before: string, after: string): number {
  const lines = after.split(/\r?\n/);
  const old = before.split(/\r?\n/);
  const differs = lines.findIndex((text, line) => text !== old[line]);
  const kernels = lines.flatMap((text, line) => (KERNEL.test(text) ? [line] : []));
  if (before === "") return kernels.at(-1) ?? 0;
  return kernels.filter((line) => line <= differs).at(-1) ?? kernels[0] ?? 0;
}
