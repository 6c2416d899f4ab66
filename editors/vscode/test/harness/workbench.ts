// What a user does in VS Code and what they see of it. Every step waits for what it brings about.

import type { Locator, Page } from "playwright-core";
import type { Editor } from "./places";
import { until } from "./wait";

const STEP_MS = 10_000;

export class Workbench {
  constructor(readonly page: Page, readonly editor: Editor) {}

  /** Waits until the window shows its files and no extension is starting. */
  async ready(): Promise<void> {
    await this.page.locator(".explorer-folders-view .monaco-list-row").first().waitFor({ timeout: 90_000 });
    await this.page.getByText("Activating Extensions").waitFor({ state: "hidden", timeout: 60_000 });
  }

  async open(file: string): Promise<void> {
    await this.page.getByRole("treeitem", { name: file, exact: false }).first().dblclick();
    await this.tab(file).and(this.page.locator("[aria-selected=true]")).waitFor();
    await this.page.locator(".editor-group-container.active .view-line").first().waitFor();
  }

  tab(name: string | RegExp): Locator {
    return this.page.getByRole("tab", { name }).first();
  }

  /** Runs a command of the palette by its whole title, such as "HIERA: Show Logs". */
  async command(title: string): Promise<void> {
    await this.again(`the command ${title}`, async () => {
      await this.page.keyboard.press("F1");
      const rows = await this.typed(`>${title}`);
      await rows.filter({ hasText: title }).first().click({ timeout: STEP_MS });
    });
  }

  /** Whether the palette has the command. */
  async offers(title: string): Promise<boolean> {
    let found = false;
    await this.again("the command palette", async () => {
      await this.page.keyboard.press("F1");
      const rows = await this.typed(`>${title}`);
      // The palette says "no matching commands" where there is none.
      await rows.first().waitFor({ timeout: STEP_MS });
      found = (await rows.filter({ hasText: title }).count()) > 0;
    });
    await this.escape();
    return found;
  }

  /** Puts the cursor there; both count from 1. */
  async goTo(line: number, column: number): Promise<void> {
    await this.again(`the cursor at ${line}:${column}`, async () => {
      await this.page.keyboard.press("Control+g");
      await this.typed(`:${line}:${column}`);
      await this.page.keyboard.press("Enter");
      await this.status(`Ln ${line}, Col ${column}`).waitFor({ timeout: STEP_MS });
    });
  }

  /** Types into the open quick input and gives its rows. */
  private async typed(text: string): Promise<Locator> {
    const input = this.page.locator(".quick-input-widget:visible input:visible").last();
    // Not by keys: those go to an editor that takes the focus in between.
    await input.evaluate((field: { value: string; dispatchEvent: (event: Event) => boolean }, value) => {
      field.value = value;
      field.dispatchEvent(new Event("input", { bubbles: true }));
    }, text, { timeout: STEP_MS });
    return this.page.locator(".quick-input-widget:visible .monaco-list-row");
  }

  /** What opens a quick input is done again when an editor that opens at the same time takes the focus and closes it. */
  private async again(what: string, attempt: () => Promise<void>): Promise<void> {
    let last: unknown;
    await until(what, async () => {
      try {
        await attempt();
        return true;
      } catch (error) {
        last = error;
        await this.escape();
        return false;
      }
    }, 60_000).catch((error: unknown) => {
      throw new Error(`${String(error)}: ${String(last)}`);
    });
  }

  /** The entry of the status bar that holds this text. */
  status(text: string | RegExp): Locator {
    return this.page.locator(".statusbar-item:visible", { hasText: text }).first();
  }

  notification(text: string | RegExp): Locator {
    return this.page.locator(".notifications-toasts .notification-list-item", { hasText: text }).first();
  }

  /** A lens of the editor in front. */
  lens(title: string | RegExp): Locator {
    return this.page.locator(".editor-group-container.active .codelens-decoration:visible a", { hasText: title }).first();
  }

  /** Opens the menu of code actions at the cursor, `Ctrl+.` or with `refactor` the Refactor menu, and gives its rows. */
  async codeActions(wanted: string | RegExp, refactor = false): Promise<Locator> {
    const rows = this.page.locator(".action-widget .monaco-list-row");
    const row = rows.filter({ hasText: wanted }).first();
    await until(`the code action ${String(wanted)}`, async () => {
      await this.page.keyboard.press(refactor ? "Control+Shift+R" : "Control+.");
      // The menu may open before the server has answered, and then without us: close it and ask again.
      if (await appears(row, 3_000)) return true;
      await this.escape();
      return false;
    }, 60_000);
    return row;
  }

  async takeAction(title: string | RegExp, refactor = false): Promise<void> {
    const row = await this.codeActions(title, refactor);
    // VS Code 1.100 lets nothing be clicked before the mouse has moved.
    await row.hover({ force: true });
    await row.click();
  }

  /** The icon of the editor's title bar with this name. */
  titleButton(name: string | RegExp): Locator {
    return this.page.locator(".editor-group-container.active .editor-actions").getByRole("button", { name }).first();
  }

  /** The whole text of the editor in front, as its buffer holds it. */
  async bufferText(): Promise<string> {
    await this.page.evaluate("navigator.clipboard.writeText('')");
    await this.focusEditor();
    await this.page.keyboard.press("Control+a");
    await this.page.keyboard.press("Control+c");
    return until("the clipboard", async () => (await this.page.evaluate<string>("navigator.clipboard.readText()")) || null);
  }

  async focusEditor(): Promise<void> {
    await this.command("View: Focus Active Editor Group");
    await this.page.locator(".editor-group-container.active .monaco-editor.focused").first().waitFor();
  }

  async undo(): Promise<void> {
    await this.focusEditor();
    await this.page.keyboard.press("Control+z");
  }

  async save(): Promise<void> {
    await this.focusEditor();
    await this.page.keyboard.press("Control+s");
  }

  /** Closes what lies over the editor. */
  async escape(): Promise<void> {
    await this.page.keyboard.press("Escape");
  }

  async picture(file: string): Promise<void> {
    await this.page.screenshot({ path: file });
  }
}

async function appears(what: Locator, limitMs: number): Promise<boolean> {
  return what.waitFor({ timeout: limitMs }).then(() => true, () => false);
}
