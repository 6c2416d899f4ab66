// Many events, one answer.

/** Runs something once, a while after it was last asked for the first time. */
export class Later {
  private timer: NodeJS.Timeout | undefined;

  constructor(private readonly pauseMs: number, private readonly run: () => void) {}

  soon(): void {
    this.timer ??= setTimeout(() => {
      this.timer = undefined;
      this.run();
    }, this.pauseMs);
  }

  dispose(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
  }
}
